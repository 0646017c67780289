"""What the benchmark of the terminal application needs: a program at a pseudo-terminal, and a filled home."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.terminal import EMPTY, WORD, filled, painted
from marlaas.engine.store.queries.reader import Reader


@pytest.mark.processes
def test_text_is_found_between_escapes() -> None:
    assert painted((sys.executable, "-c", "print('\\x1b[1mhel\\x1b[0mlo'); input()"), "hello") > 0


@pytest.mark.processes
def test_a_program_that_ends_is_no_quick_one() -> None:
    with pytest.raises(RuntimeError, match="oh dear"):
        painted((sys.executable, "-c", "print('oh dear')"), "hello")


@pytest.mark.processes
def test_the_empty_program_shows_its_word() -> None:
    assert painted((sys.executable, "-c", EMPTY), WORD) > 0


def test_a_filled_home_reads_like_a_real_one(tmp_path: Path) -> None:
    home = filled(tmp_path / "home", 2, steps=3)
    with Reader(home.database) as reader:
        tasks = [(task.name, task.state, task.step) for task in reader.tasks()]
        assert tasks == [("task-01-sums", "running", 3), ("task-02-sums", "running", 3)]
        assert len(reader.evals(1)) == 1 and reader.steps(2)[-1].metrics["loss"]
