"""Which Pythons are tried, what is skipped there, and how the rounds are counted."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools.pythons import __main__ as pythons
from tools.pythons import without_torch

OWN = f"{sys.version_info.major}.{sys.version_info.minor}"


def test_an_interpreter_is_found_by_what_it_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert pythons.find(OWN) is None
    (tmp_path / "bin" / "python3.99").symlink_to(sys.executable)
    assert pythons.find("3.99") is None, "its name is not enough"
    kept = tmp_path / f".pyenv/versions/{OWN}.4/bin/python{OWN}"
    kept.parent.mkdir(parents=True)
    kept.symlink_to(sys.executable)
    assert pythons.find(OWN) == str(kept)


@pytest.mark.parametrize("name", ["torch", "torch.nn", "llama_cpp", "peft.tuners"])
def test_what_needs_torch_is_skipped(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    without_torch.pytest_configure()
    first = sys.meta_path[0]
    with pytest.raises(pytest.skip.Exception, match="needs") as caught:
        first.find_spec(name, None)
    assert caught.value.allow_module_level and first.find_spec("torchless", None) is None


@pytest.mark.parametrize(
    ("said", "code", "counts"),
    [
        ("12 passed, 3 skipped, 8 deselected in 4.20s", 0, "12 passed, 0 failed, 3 skipped"),
        ("1 failed in x\n2 failed, 12 passed, 1 error in 64.01s (0:01:04)\n", 1, "12 passed, 3 failed, 0 skipped"),
        ("5 deselected in 0.12s", 5, "0 passed, 0 failed, 0 skipped"),
        ("Killed", 137, "0 passed, 1 failed, 0 skipped"),
        ("12 passed in 4.20s\nPytestUnraisableExceptionWarning", 1, "12 passed, 1 failed, 0 skipped"),
    ],
)
def test_rounds_are_counted_by_their_closing_line(said: str, code: int, counts: str) -> None:
    assert pythons.in_words(pythons.counted(said, code)) == counts


def test_what_failed_is_named() -> None:
    said = "....F\nFAILED tests/a.py::test_b - AssertionError\nERROR tests/c.py\n1 failed in 3s"
    assert list(pythons.failures(said)) == ["FAILED tests/a.py::test_b - AssertionError", "ERROR tests/c.py"]


def test_every_python_that_the_project_promises_is_tried() -> None:
    assert pythons.PROMISED[0] == "3.11" and OWN in pythons.PROMISED
