"""Which Pythons and ways to compute are tried, what is skipped there, and how the rounds are counted."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tools import matrix
from tools.steps import ROOT

OWN = f"{sys.version_info.major}.{sys.version_info.minor}"


def test_an_interpreter_is_found_by_what_it_prints(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert matrix.find(OWN) is None
    (tmp_path / "bin" / "python3.99").symlink_to(sys.executable)
    assert matrix.find("3.99") is None, "its name is not enough"
    kept = tmp_path / f".pyenv/versions/{OWN}.4/bin/python{OWN}"
    kept.parent.mkdir(parents=True)
    kept.symlink_to(sys.executable)
    assert matrix.find(OWN) == str(kept)


@pytest.mark.parametrize("name", ["torch", "torch.nn", "llama_cpp", "peft.tuners"])
def test_what_needs_torch_is_skipped(name: str) -> None:
    finder = matrix.Skipper()
    with pytest.raises(pytest.skip.Exception, match="needs") as caught:
        finder.find_spec(name)
    assert caught.value.allow_module_level
    finder.find_spec("torchless")


def test_what_a_child_process_needs_torch_for_is_left_out() -> None:
    """By its mark, or with the folder of whole engines."""

    @dataclass
    class Item:
        path: Path
        mark: str = ""

        def get_closest_marker(self, name: str) -> bool:
            return name == self.mark

    stays, marked = Item(Path("tests/app/test_a.py"), "processes"), Item(Path("tests/app/test_b.py"), "torch")
    items: list[Any] = [stays, marked, Item(Path("tests/end_to_end/test_c.py"))]
    left_out: list[Any] = []
    config = SimpleNamespace(hook=SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items)))
    matrix.pytest_collection_modifyitems(config, items)
    assert items == [stays] and len(left_out) == 2


def test_each_set_of_instructions_is_tried_with_each_library(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: dict[str, dict[str, str]] = {}

    def tested(title: str, python: Path, variables: dict[str, str], options: Sequence[str]) -> Counter[str]:
        rounds[title] = variables
        return Counter(passed=1)

    monkeypatch.setattr(matrix, "tested", tested)
    monkeypatch.setattr(matrix, "instruction_sets", lambda: "x86_64 avx512f")
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert sum(matrix.processors(), Counter[str]()) == Counter(passed=len(rounds))
    assert set(rounds) == {
        *(f"{library}, all instructions, 1 thread" for library in ("mkl", "onednn")),
        *(f"{library}, AVX2, 1 thread" for library in ("mkl", "onednn")),
        *(f"{library}, all instructions, 2 threads" for library in ("mkl", "onednn")),
    }
    assert rounds["mkl, AVX2, 1 thread"]["ATEN_CPU_CAPABILITY"] == "avx2"
    assert "ATEN_CPU_CAPABILITY" not in rounds["mkl, all instructions, 1 thread"]
    assert rounds["onednn, all instructions, 2 threads"]["OMP_NUM_THREADS"] == "2"


def test_the_files_that_are_named_exist() -> None:
    assert all((ROOT / name).exists() for name in (*matrix.ARITHMETIC, *matrix.LLAMA))
