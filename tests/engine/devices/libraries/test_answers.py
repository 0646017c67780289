"""Libraries are asked in child processes; whatever becomes of these is an answer."""

import sys
from pathlib import Path

import pytest

from marlaas.engine.devices import software
from marlaas.engine.devices.machine import Gpu
from marlaas.engine.devices.software import answers_of, ask, read_lines


def test_lines_are_found_among_what_libraries_print() -> None:
    out = 'INFO hello\n{"library": "torch", "count": 2}\n[1]\n{"other": 1}\n{"library": "vllm", "platform": "cuda"}\n'
    assert read_lines(out) == {
        "torch": {"library": "torch", "count": 2},
        "vllm": {"library": "vllm", "platform": "cuda"},
    }


def test_cards_of_llama_beside_those_of_cuda() -> None:
    lines = [
        {"name": "CUDA0", "description": "H200", "kind": "cuda", "free": 0, "memory": 0},
        {"name": "Vulkan0", "description": "Radeon", "kind": "vulkan", "free": 5, "memory": 9},
    ]
    said = answers_of({"llama.cpp": {"cards": lines}})
    assert said.cards == (Gpu(1, "Vulkan0", "Radeon", "vulkan", 9, 5),) and said.llama_reaches == 2
    assert answers_of({}).cards == () and answers_of({}).llama_reaches == 0


@pytest.mark.processes
class TestChildren:
    @pytest.fixture
    def probe(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A module in the place of a probe."""
        monkeypatch.setattr(software, "TORCH_CARDS", "probes_of_this_test.torch_cards")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        (tmp_path / "probes_of_this_test").mkdir()
        (tmp_path / "probes_of_this_test/__init__.py").touch()
        return tmp_path / "probes_of_this_test/torch_cards.py"

    @pytest.mark.torch
    def test_llama_is_really_asked(self) -> None:
        said = ask((), torch=False, vllm=False, llama=True)
        assert said.llama_error == "" and said.llama_reaches == len(said.cards)

    def test_a_crash_after_the_first_line_is_the_second_library_s(self, probe: Path) -> None:
        probe.write_text('import os\nprint(\'{"library": "torch", "count": 1}\', flush=True)\nos.abort()')
        said = ask((), torch=True, vllm=True, llama=False)
        assert said.torch_count == 1 and said.torch_error == ""
        assert said.vllm_error == "it ended with status -6"

    def test_the_last_line_of_a_traceback_is_told(self, probe: Path) -> None:
        probe.write_text("raise OSError('libcudart.so.13 is missing')")
        assert ask((), torch=True, vllm=False, llama=False).torch_error == "OSError: libcudart.so.13 is missing"

    def test_a_child_that_hangs_is_ended(self, probe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(software, "LIMIT", 1.0)
        probe.write_text("import time\ntime.sleep(60)")
        assert ask((), torch=True, vllm=False, llama=False).torch_error == "it gave no answer within 1 s"

    def test_children_see_only_the_cards_that_may_be_used(self, probe: Path) -> None:
        text = "import json, os\nprint(json.dumps({'library': 'torch', 'cuda': os.environ['CUDA_VISIBLE_DEVICES']}))"
        probe.write_text(text)
        card = Gpu(3, "GPU-3", "H200", "cuda", 1, 1)
        assert ask((card,), torch=True, vllm=False, llama=False).torch_cuda == "GPU-3"
        assert ask((), torch=True, vllm=False, llama=False).torch_cuda == ""

    def test_a_python_that_is_gone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        assert "No such file" in ask((), torch=True, vllm=False, llama=False).torch_error
