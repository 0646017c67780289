"""What the benchmark of large homes does to a home: it opens each view, runs a verb, and asks for the disk's room."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.report.figures import Unmeasurable
from benchmarks.terminal import big_home, long_history
from benchmarks.terminal.long_history import Shape, history


@pytest.mark.processes
def test_every_view_and_verb_is_timed(tmp_path: Path) -> None:
    home = history(tmp_path / "home", 512, Shape(prompts=4, events=40, variety=4))
    assert big_home.first_paint(home).wall > 0
    turns = big_home.walk(home)
    assert len(turns) == len(big_home.views(home)) and all(turn.wall > 0 for turn in turns)
    assert 0 < big_home.verb(home, "list").processor < 60


def test_a_home_that_does_not_fit_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(Unmeasurable, match="GB free"):
        big_home._check_room(tmp_path, 10**9)
    big_home._check_room(tmp_path, 10)


def test_a_trajectory_takes_what_the_check_says(tmp_path: Path) -> None:
    few, many = (
        history(tmp_path / str(groups), groups, Shape(tasks=3, every=10**6, events=4)).database.stat().st_size
        for groups in (64, 512)
    )
    rows = (512 - 64) * long_history.MEMBERS
    assert (many - few) / rows == pytest.approx(long_history.BYTES, rel=0.15)
