"""The checker and groups with redundant members: some numbers are missing, never too many members there."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from marlaas.engine.queue.scheduler.scheduler import Ending
from marlaas.engine.spec.task import PolicySpec
from tests.engine.queue.scheduler.world import World
from tests.engine.train.groups.test_open_plays import Held, dies, environment, kept
from tests.engine.train.test_learning import SPEC
from tests.oracle.audit import audit

LAST = (
    '(SELECT max(t.id) FROM trajectories t JOIN groups g ON g.id = t."group"'
    " WHERE g.split = 'train' AND g.number = 9)"
)
TASK = replace(SPEC, policy=PolicySpec(1, 1.0), train=replace(SPEC.train, group_size=3, redundant=2))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    async def play() -> None:
        world = World(tmp_path, TASK, most=6)
        assert await asyncio.wait_for(world.go(), 50) == Ending("done")
        world.store.tasks.set_state(world.task, "done")
        world.store.close()

    asyncio.run(play())
    return tmp_path


def doctor(home: Path, sql: str) -> None:
    with closing(sqlite3.connect(home / "marlaas.db", isolation_level=None)) as database:
        database.execute(sql)


def test_a_true_home_is_proven(home: Path) -> None:
    with closing(sqlite3.connect(home / "marlaas.db")) as database:
        (highest,) = database.execute("SELECT max(member) FROM trajectories").fetchone()
    report = audit(home, updates=False)
    assert highest == 4 and not report.problems and report.proven["groups are whole"] == 10


@pytest.mark.parametrize(
    "lie",
    [
        f"UPDATE trajectories SET member = 5 WHERE id = {LAST}",
        f"DELETE FROM trajectories WHERE id = {LAST}",
        "UPDATE tasks SET config = json_set(config, '$.train.redundant', 0)",
    ],
)
def test_lies_are_found(home: Path, lie: str) -> None:
    doctor(home, lie)
    assert any("its members are" in problem for problem in audit(home, updates=False).problems)


async def test_redundant_members_of_an_open_play_are_in_order(tmp_path: Path) -> None:
    world = World(tmp_path, TASK, most=6)
    world.environments = Held(world.chance, holds=lambda spec: spec.member < TASK.train.group_size)
    await dies(world, lambda: environment(world).well >= TASK.train.redundant)
    assert {member for _, member in kept(world)} == {3, 4}
    report = audit(tmp_path, updates=False)
    assert not report.problems and report.proven["open plays keep to their versions"] > 0
    doctor(tmp_path, "UPDATE open_trajectories SET member = 5 WHERE member = 4")
    assert any("member 5 says" in problem for problem in audit(tmp_path, updates=False).problems)
