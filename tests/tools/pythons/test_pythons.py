"""Which Pythons are tried, what is skipped there, and how the rounds are counted."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tools.pythons import __main__ as pythons, without_torch

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
    ("said", "counts"),
    [
        ("....\n12 passed in 4s\n12 passed, 0 failed, 3 skipped\n", "12 passed, 0 failed, 3 skipped"),
        ("12 passed, 0 failed, 3 skipped\nKilled", "0 passed, 1 failed, 0 skipped"),
        ("No module named pytest", "0 passed, 1 failed, 0 skipped"),
        ("", "0 passed, 1 failed, 0 skipped"),
    ],
)
def test_the_closing_line_counts(said: str, counts: str) -> None:
    assert pythons.in_words(pythons.counted(said)) == counts


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
    told: list[Any] = []
    config = SimpleNamespace(hook=SimpleNamespace(pytest_deselected=lambda items: told.extend(items)))
    without_torch.pytest_collection_modifyitems(cast(pytest.Config, config), items)
    assert items == [stays] and len(told) == 2


def test_what_failed_is_named() -> None:
    said = "....F\nFAILED tests/a.py::test_b - AssertionError\nERROR tests/c.py\n1 failed in 3s"
    assert list(pythons.failures(said)) == ["FAILED tests/a.py::test_b - AssertionError", "ERROR tests/c.py"]


def test_every_python_that_the_project_promises_is_tried() -> None:
    assert pythons.PROMISED[0] == "3.11" and OWN in pythons.PROMISED
