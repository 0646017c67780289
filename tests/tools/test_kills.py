"""The kill harness on a small scale: a real engine dies at named points, and nothing can be told from its adapters."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from marlaas.engine.faults import VARIABLE, Point
from marlaas.engine.home.paths import Home
from tests.arming import arm, recorded
from tests.oracle.audit import audit
from tools.kills import Lab, exact, finish, least_tried, tasks_of, wave

from ..app.filling import Filling

STEPS = 6


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_deaths_at_named_points_change_no_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")
    calm, stormy = Lab.make(tmp_path / "calm", 0, faults=False), Lab.make(tmp_path / "stormy", 0, faults=True)
    deadly = {Point.GROUP_INSIDE: 2, Point.SAMPLER_LOADED: 1, Point.COMMIT_DONE: 1, Point.STATE_NAMED: 2}
    for point, count in deadly.items():
        arm(stormy.folder, point, count, "once")
    for lab in (stormy, calm):
        lab.submit([exact(STEPS)])
        finish_without_disarming(lab)
        lab.stop()
    record = recorded(stormy.folder)
    assert {one.point for one in record if one.died} == set(deadly)
    assert stormy.checksums(1) == calm.checksums(1) and len(set(calm.checksums(1))) == STEPS + 1
    assert stormy.lost() == []
    report = audit(stormy.home.root)
    assert report.problems == [] and report.proven["updates"] == STEPS


def finish_without_disarming(lab: Lab) -> None:
    """As a person would: start the engine again until the task is done."""
    while any(row.unfinished for row in lab.look()):
        lab.start()
    finish(lab)


def test_the_least_tried_point_within_reach_is_next() -> None:
    tried = Counter({Point.COMMIT_DONE: 2, Point.PAGE_IN: 1})
    reachable, rng = [Point.COMMIT_DONE, Point.PAGE_IN, Point.STATE_NAMED], random.Random(0)
    drawn = [least_tried(tried, reachable, rng) for _ in range(3)]
    assert drawn[0] == Point.STATE_NAMED and set(drawn[1:]) == {Point.STATE_NAMED, Point.PAGE_IN}
    assert all(count == 2 for count in tried.values())


def test_waves_have_bounds_of_0_2_and_4_and_one_task_repeats() -> None:
    files = wave(1)
    assert {bound for bound in "024" for file in files if f"max_staleness = {bound}" in file.text} == set("024")
    assert [file.exact for file in files].count(True) == 1 and files[0] == wave(2)[0] == exact()
    assert len({file.name for file in (*files, *wave(2))}) == 2 * len(files) - 1


def test_a_database_that_is_being_made_has_no_tasks(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    assert tasks_of(home) == [] and not home.root.exists(), "looking makes nothing"
    home.create()
    with closing(sqlite3.connect(home.database)) as making:
        making.execute("CREATE TABLE other (a)")
        assert tasks_of(home) == []
    home.database.unlink()
    filling = Filling(home.database)
    assert tasks_of(home) == []
    assert [filling.task(), filling.task()] == [row.id for row in tasks_of(home)]
