"""Difficulty sampling: rows that teach little are drawn less, none is left out, and nothing depends on timing."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from marlaas.engine.environments.protocol import DataFacts, EpisodeSpec
from marlaas.engine.queue.scheduler.scheduler import Ending
from marlaas.engine.store.experience import Draw
from marlaas.engine.train.drawing import FLOOR, STRIDE, Curriculum
from marlaas.plugins.data import row_at

from ..queue.scheduler.world import World
from .test_learning import SPEC, check_history

ROWS = 40
BATCH = 4


def draw(number: int, position: int, rewards: tuple[float, ...], rows: int = ROWS) -> Draw:
    mean = sum(rewards) / len(rewards)
    spread = (sum((reward - mean) ** 2 for reward in rewards) / len(rewards)) ** 0.5
    return Draw(number, 0, position, row_at("train", 0, position, rows), rows, min(rewards), max(rewards), spread)


def rewards_of(row: int) -> tuple[float, ...]:
    """Of ten rows four are always solved, four never, two sometimes."""
    return (1.0, 1.0) if row % 10 < 4 else (0.0, 0.0) if row % 10 < 8 else (0.0, 1.0)


def run(curriculum: Curriculum, begin: int, end: int) -> list[Draw]:
    """Draw and learn, group after group."""
    found = []
    for number in range(begin, end):
        position = curriculum.position(number, ROWS)
        found.append(draw(number, position, rewards_of(row_at("train", 0, position, ROWS))))
        curriculum.learn(found[-1])
    return found


def test_rows_that_teach_are_drawn_most_and_none_is_left_out() -> None:
    """A weight of 1 against 0.1 makes 10 : 1 for each row, in the long run; here for 8 rows against 32."""
    late = run(Curriculum(0, BATCH, 1), 0, 2400)[400:]
    counts = Counter(one.row for one in late)
    teaching = sum(times for row, times in counts.items() if row % 10 >= 8)
    assert set(counts) == set(range(ROWS))
    assert teaching / len(late) == pytest.approx(8 / (8 + 32 * FLOOR), abs=0.05)


def test_weights_follow_from_earlier_steps_alone() -> None:
    curriculum = Curriculum(0, BATCH, 0)
    solved, between = (row_at("train", 0, position, ROWS) for position in (0, 1))
    curriculum.learn(draw(0, 0, (1.0, 1.0)))
    curriculum.learn(draw(1, 1, (0.0, 1.0)))
    assert [curriculum.weight(row, 0) for row in (solved, between)] == [1.0, 1.0]
    assert [curriculum.weight(row, 1) for row in (solved, between)] == [0.5, 1.0]
    for number in range(2, 20):
        curriculum.learn(draw(number, 0, (1.0, 1.0)))
    assert curriculum.weight(solved, 5) == FLOOR
    curriculum.learn(draw(20, 0, (0.0, 1.0)))
    assert curriculum.weight(solved, 6) == pytest.approx(0.5, abs=0.01)


def test_before_rewards_differ_all_rows_are_alike() -> None:
    curriculum = Curriculum(0, 1, 0)
    curriculum.learn(draw(0, 0, (1.0, 1.0)))
    assert curriculum.weight(row_at("train", 0, 0, ROWS), 1) == 1.0


def test_a_restart_draws_the_same_rows() -> None:
    """From the groups that were stored: those of the steps before, and some of the step under way."""
    whole = run(Curriculum(0, BATCH, 1), 0, 240)
    for stop, lost in ((100, set()), (103, {101}), (107, {101, 104, 105})):
        stored = [one for one in whole[:stop] if one.number not in lost]
        again = Curriculum(0, BATCH, 1, stored)
        assert [again.position(number, ROWS) for number in range(104)] == [one.position for one in whole[:104]]


def test_rows_are_counted_by_their_last_group() -> None:
    curriculum = Curriculum(0, 1, 0)
    for number, rewards in enumerate([(0.0, 0.0), (1.0, 1.0), (0.0, 1.0), (0.5, 0.5)]):
        curriculum.learn(draw(number, number, rewards))
    curriculum.learn(draw(4, 0, (1.0, 1.0)))
    assert curriculum.solved() == (2, 0, 2)


def test_other_rows_begin_anew() -> None:
    curriculum = Curriculum(0, 1, 0, [draw(0, 0, (0.0, 1.0)), draw(1, 1, (1.0, 1.0))])
    curriculum.learn(draw(2, 2, (1.0, 1.0), rows=10))
    assert curriculum.solved() == (0, 1, 0)
    assert curriculum.weight(row_at("train", 0, 2, 10), 3) == 1.0


DIFFICULT = replace(SPEC, steps=12, train=replace(SPEC.train, sampling="difficulty", dynamic_sampling=True))


def score(spec: EpisodeSpec) -> float:
    """By row and member: half of the rows are always solved."""
    return 1.0 if row_at("train", 0, spec.index, 10) < 5 else float(spec.member)


def drawn(world: World) -> list[tuple[int, ...]]:
    sql = "SELECT number, attempt, position, row, rows FROM draws ORDER BY number, attempt"
    return [tuple(row.values()) for row in map(dict, world.query(sql))]


async def test_runs_draw_the_same_whatever_dies(tmp_path: Path) -> None:
    runs = []
    for name, turns in (("whole", 0), ("killed", 250), ("early", 150)):
        world = World(tmp_path / name, DIFFICULT)
        world.environments.data = DataFacts(train=10, held_out=4)
        world.environments.score = score
        ending = asyncio.ensure_future(world.go())
        for _ in range(4 if turns else 0):
            for _ in range(turns):
                await asyncio.sleep(0)
            world.kill_workers()
        assert await asyncio.wait_for(ending, 30) == Ending("done")
        check_history(world)
        groups = world.query("SELECT number, instance, replaced FROM groups WHERE split = 'train' ORDER BY number")
        runs.append((drawn(world), [tuple(dict(row).values()) for row in groups]))
    assert runs[0] == runs[1] == runs[2]
    assert len(runs[0][0]) > len(runs[0][1])  # what was thrown away is known, too
    taken = Counter(row for _, attempt, _, row, _ in runs[0][0] if attempt == 0)
    assert sum(taken[row] for row in range(5)) < sum(taken[row] for row in range(5, 10))


async def test_what_is_solved_is_shown(tmp_path: Path) -> None:
    world = World(tmp_path, replace(DIFFICULT, train=replace(DIFFICULT.train, dynamic_sampling=False)))
    world.environments.data = DataFacts(train=10, held_out=4)
    world.environments.score = score
    assert await asyncio.wait_for(world.go(), 50) == Ending("done")
    last = {row["name"]: row["value"] for row in world.query("SELECT name, value FROM metrics WHERE step = 12")}
    assert (last["prompts_solved"], last["prompts_unsolved"], last["prompts_between"]) == (5.0, 0.0, 5.0)
    assert last["rows"] == 10.0 and last["epoch"] >= 2.4


async def test_without_rows_there_is_nothing_to_choose_from(tmp_path: Path) -> None:
    world = World(tmp_path, DIFFICULT)
    ending = await asyncio.wait_for(world.go(), 50)
    assert ending.state == "paused" and "sums has no rows to choose from" in str(ending.reason)


async def test_later_attempts_come_from_far_ahead(tmp_path: Path) -> None:
    world = World(tmp_path, DIFFICULT)
    world.environments.data = DataFacts(train=10, held_out=4)
    world.environments.score = score
    assert await asyncio.wait_for(world.go(), 50) == Ending("done")
    rows: dict[int, set[int]] = {}
    for number, attempt, position, row, _ in drawn(world):
        assert position // STRIDE == attempt and row not in rows.setdefault(number, set())
        rows[number].add(row)
