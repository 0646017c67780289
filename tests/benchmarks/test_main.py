"""The command with benchmarks that measure nothing: which results are kept, and what a failure costs."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks.report.figures import Row, Section, Series
from benchmarks.report.machine import Machine
from benchmarks.report.pictures import Curve, Curves
from benchmarks.runner import MODULES

MACHINE = Machine("Some CPU", 2, 24.0, 106.0, 0.03, 0.2)


class Here:
    """Stands in for the pool: calls in this process, so that a replaced ``measure`` is called."""

    def __init__(self, *unused: object) -> None: ...

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *unused: object) -> None: ...

    def submit(self, function: object, name: str, quick: bool) -> Here:
        self._outcome = measured(name, quick)
        return self

    def result(self) -> tuple[Section, Machine]:
        return self._outcome


def measured(name: str, quick: bool) -> tuple[Section, Machine]:
    if name == "gateway":
        raise RuntimeError("no torch here")
    shown = Curves(f"{name}_curve", "A curve", "It rises.", "x", "y", (Curve("one", (0, 1), (0, 1)),))
    row = Row("a step", "ms", Series((1.0,)))
    return Section(name, f"About {name}", "Once.", (row,), pictures=(shown,)), MACHINE


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(command, "ProcessPoolExecutor", Here)
    monkeypatch.setattr(command, "ROOT", tmp_path)
    monkeypatch.setattr(command, "PUBLISHED", tmp_path / "results")
    return tmp_path


def test_a_run_of_one_keeps_the_others(published: Path) -> None:
    assert command.main(["scaling"]) == 0
    assert command.main(["terminal"]) == 0
    page = (published / "BENCHMARKS.md").read_text()
    assert "[About scaling](results/scaling.md)" in page and "[About terminal](results/terminal.md)" in page
    assert "[Benchmarks](../BENCHMARKS.md)" in (published / "results" / "scaling.md").read_text()


def test_pages_are_written_without_measuring(published: Path) -> None:
    assert command.main(["scaling"]) == 0
    (published / "BENCHMARKS.md").unlink()
    assert command.main(["--write"]) == 0
    assert "About scaling" in (published / "BENCHMARKS.md").read_text()
    assert {path.stem for path in (published / "results" / "data").iterdir()} == {"scaling"}


def test_pictures_lie_where_docs_can_show_them(published: Path, tmp_path: Path) -> None:
    assert command.main(["scaling"]) == 0
    page = published / "results" / "scaling.md"
    shown = page.read_text().split("](")[2].split(")")[0]
    assert (page.parent / shown).resolve() == published / "docs" / "measured" / "scaling_curve.svg"
    assert "It rises." in (published / "docs" / "measured" / "scaling_curve.svg").read_text()
    out = tmp_path / "elsewhere"
    assert command.main(["terminal", "--quick", "--out", str(out)]) == 0
    assert (out / "pictures" / "terminal_curve.svg").exists()
    assert not (published / "docs" / "measured" / "terminal_curve.svg").exists()


def test_one_that_fails_costs_itself_alone(published: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([]) == 1
    kept = {path.stem for path in (published / "results" / "data").iterdir()}
    assert kept == set(command.NAMES) - {"gateway"}
    assert "gateway failed: RuntimeError: no torch here" in capsys.readouterr().err


def test_a_quick_run_publishes_nothing(published: Path, tmp_path: Path) -> None:
    out = tmp_path / "elsewhere"
    assert command.main(["scaling", "--quick", "--out", str(out)]) == 0
    assert command.main(["scaling", "--quick"]) == 0
    assert (out / "data" / "scaling.json").exists() and "(scaling.md)" in (out / "BENCHMARKS.md").read_text()
    assert not (published / "BENCHMARKS.md").exists() and not (published / "results").exists()


@pytest.mark.parametrize("name", command.NAMES)
def test_every_name_has_its_module(name: str) -> None:
    module, _, _ = MODULES[name].partition(":")
    assert find_spec(f"benchmarks.{module}")


def test_an_unknown_name_is_refused(published: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["trainers"])
    assert "there is no benchmark 'trainers'" in capsys.readouterr().err
