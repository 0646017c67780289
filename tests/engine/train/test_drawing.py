"""Which row a group draws: all of them once in an epoch, whatever is played again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.environments.protocol import DataFacts, EpisodeSpec
from marlaas.engine.errors import EnvironmentFailure
from marlaas.engine.queue.scheduler.scheduler import Ending
from marlaas.engine.train.drawing import STRIDE, instances
from marlaas.plugins.data import row_at

from ..queue.scheduler.world import World
from .test_learning import SPEC, check_history


@given(st.integers(0, 10**6), st.integers(0, 2**31), st.integers(1, 40))
def test_attempts_draw_other_rows_as_long_as_there_are_others(number: int, seed: int, rows: int) -> None:
    drawn = list(islice(instances(number, seed, rows), 60))
    assert drawn[0] == number and all((index - number) % STRIDE == 0 for index in drawn)
    assert len(set(drawn)) == 60
    assert {row_at("train", seed, index, rows) for index in drawn[:rows]} == set(range(rows))


def test_without_rows_attempts_are_far_apart() -> None:
    assert list(islice(instances(5, 0, 0), 3)) == [5, 5 + STRIDE, 5 + 2 * STRIDE]


def rows_drawn(world: World, rows: int) -> list[int]:
    """The rows of first attempts, by group number."""
    first = {spec.index for spec in world.environments.begun if spec.index < STRIDE}
    return [row_at("train", world.spec.train.seed, index, rows) for index in sorted(first)]


async def test_replaced_groups_leave_no_row_of_the_epoch_out(tmp_path: Path) -> None:
    """10 groups of 10 rows; a third of them fail or are replaced."""
    spec = replace(SPEC, train=replace(SPEC.train, dynamic_sampling=True, seed=3))
    world = World(tmp_path, spec)
    world.environments.data = DataFacts(train=10, held_out=4)
    world.environments.failing = lambda spec: spec.split == "train" and spec.index == 4
    world.environments.score = lambda spec: 1.0 if spec.index < STRIDE and spec.index % 3 == 0 else float(spec.member)
    assert await asyncio.wait_for(world.go(), 50) == Ending("done")
    check_history(world)
    assert sorted(rows_drawn(world, 10)) == list(range(10))
    again = [s.index for s in world.environments.begun if s.index >= STRIDE]
    assert again and all(row_at("train", 3, n, 10) != row_at("train", 3, n % STRIDE, 10) for n in again)


async def test_the_epoch_is_shown(tmp_path: Path) -> None:
    world = World(tmp_path, SPEC)
    world.environments.data = DataFacts(train=4, held_out=2)
    assert await asyncio.wait_for(world.go(), 50) == Ending("done")
    shown = world.query("SELECT step, name, value FROM metrics WHERE name IN ('epoch', 'rows') ORDER BY step, name")
    assert [row["value"] for row in shown] == [v for epoch in (0.5, 1.0, 1.5, 2.0, 2.5) for v in (epoch, 4.0)]


async def test_an_environment_without_rows_has_no_epoch(tmp_path: Path) -> None:
    world = World(tmp_path, SPEC)
    assert await asyncio.wait_for(world.go(), 50) == Ending("done")
    assert world.query("SELECT * FROM metrics WHERE name = 'epoch'") == []


async def test_rows_that_cannot_be_counted_end_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The episodes fail for the same reason, and that is what people are told."""
    world = World(tmp_path, SPEC)

    async def gone(lease: object, survey: bool = False) -> DataFacts:
        raise EnvironmentFailure("rows.jsonl is gone")

    def fails(spec: EpisodeSpec) -> bool:
        return spec.split == "train"

    monkeypatch.setattr(world.environments, "facts", gone)
    world.environments.failing = fails
    ending = await asyncio.wait_for(world.go(), 50)
    assert ending.state == "paused" and "it broke" in str(ending.reason)
