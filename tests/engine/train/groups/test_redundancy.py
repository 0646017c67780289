"""Groups with redundant members: the first with a reward close them, the others cost no time, and are known of."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from marlaas.engine.environments.protocol import EpisodeOutcome, EpisodeSpec, FinishedEpisode, Ranking
from marlaas.engine.queue.scheduler.scheduler import Ending
from marlaas.engine.train.drawing import STRIDE
from marlaas.engine.train.groups import closing, dropped, reward_of
from marlaas.engine.trajectories import Dropped, Episode, EpisodeStatus, Trajectory
from marlaas.plugins.messages import Answer

from ...queue.scheduler.fake_environments import Chance, FakeEnvironments
from ...queue.scheduler.world import World
from ..test_learning import SPEC, check_history
from .test_producer import instances, metric

TASK = replace(SPEC, train=replace(SPEC.train, group_size=3, redundant=2))
AGENT, OTHER = "agent", "other"


class Hanging(FakeEnvironments):
    """Some training members never end by themselves: they speak once, and wait."""

    def __init__(self, chance: Chance, hanging: tuple[int, ...]) -> None:
        super().__init__(chance)
        self.hanging = hanging
        self.under_way = 0
        self.counted: list[str] = []
        self.outcomes = SimpleNamespace(add=lambda *found: self.counted.append(found[-1].status))

    async def play(self, lease: Any, spec: EpisodeSpec, answer: Answer, counts: bool = False) -> EpisodeOutcome:
        self.under_way += 1
        try:
            if spec.split == "train" and spec.member in self.hanging:
                self.begun.append(spec)
                await answer(self.ask_for(spec, 0, AGENT))
                await asyncio.Event().wait()
            return await super().play(lease, spec, answer, counts)
        finally:
            self.under_way -= 1


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path, TASK)
    made.environments = Hanging(made.chance, (0, 3))
    return made


async def ends(world: World) -> Ending:
    return await asyncio.wait_for(world.go(), 50)


def members(world: World) -> dict[int, tuple[int, ...]]:
    rows = world.query(
        "SELECT g.number, t.member FROM trajectories t JOIN groups g ON g.id = t.\"group\" WHERE g.split = 'train'"
        " ORDER BY g.number, t.member"
    )
    numbers = sorted({row["number"] for row in rows})
    return {number: tuple(row["member"] for row in rows if row["number"] == number) for number in numbers}


async def test_members_that_hang_hold_no_group_up(world: World) -> None:
    assert await ends(world) == Ending("done")
    check_history(world)
    assert instances(world) == {n: n for n in range(10)}
    assert members(world) == dict.fromkeys(range(10), (1, 2, 4))
    environments = world.environments
    assert isinstance(environments, Hanging) and not environments.under_way
    assert environments.counted == ["cancelled"] * 20
    assert not world.workers.sampler.conversations, "their memory is free"
    assert metric(world, "dropped") == [pytest.approx(2 / 5)] * 5
    assert all(value > 0 for value in metric(world, "dropped_time"))
    assert len(metric(world, "dropped_length")) == len(metric(world, "slower_reward")) == 5
    assert not metric(world, "dropped_reward"), "none of them ended"


async def test_each_member_has_noise_of_its_own(world: World) -> None:
    world.environments = FakeEnvironments(world.chance)
    assert await ends(world) == Ending("done")
    begun = {(spec.index, spec.member) for spec in world.environments.begun}
    assert {member for _, member in begun} == set(range(5))
    own = {row["conversation"] for row in map(vars, world.workers.sampler.ledger)}
    assert {name.split("/g")[1].split("/")[0].split(".")[2] for name in own if "/g" in name} == set("01234")
    assert all(len(found) == 3 for found in members(world).values())


async def test_without_redundancy_all_members_close_a_group(world: World) -> None:
    world.spec = replace(TASK, train=replace(TASK.train, redundant=0))
    world.environments = FakeEnvironments(world.chance)
    assert await ends(world) == Ending("done")
    assert members(world) == dict.fromkeys(range(10), (0, 1, 2))
    assert not world.query("SELECT 1 FROM metrics WHERE name LIKE 'dropped%' OR name = 'slower_reward'")
    assert not world.query("SELECT 1 FROM groups WHERE dropped IS NOT NULL")


async def test_redundant_members_make_up_for_lost_ones(world: World) -> None:
    """Two of five always fail: without the others no group would close."""
    world.environments = FakeEnvironments(world.chance)
    world.environments.failing = lambda spec: spec.split == "train" and spec.member < 2
    assert await ends(world) == Ending("done")
    assert members(world) == dict.fromkeys(range(10), (2, 3, 4)) and metric(world, "errors") == [0.0] * 5


async def test_too_few_rewards_are_no_group_all_the_same(world: World) -> None:
    world.spec = replace(TASK, train=replace(TASK.train, min_members=2))
    lost = {1: 3, 2: 4}
    world.environments = FakeEnvironments(world.chance)
    world.environments.failing = lambda spec: spec.split == "train" and spec.member < lost.get(spec.index, 0)
    assert await ends(world) == Ending("done")
    assert instances(world) == {n: n + STRIDE * (n == 2) for n in range(10)}
    sizes = {number: len(found) for number, found in members(world).items()}
    assert sizes == dict.fromkeys(range(10), 3), "a lost member takes the place for which there is none with a reward"
    assert metric(world, "errors") == [1.0, 0.0, 0.0, 0.0, 0.0] and metric(world, "lost") == [3.0, 4.0, 0.0, 0.0, 0.0]


async def test_the_first_alone_are_ranked(world: World) -> None:
    sizes: list[int] = []

    def rank(outcomes: Any) -> Ranking:
        sizes.append(len(outcomes))
        return Ranking(tuple({AGENT: float(place)} for place, _ in enumerate(outcomes)))

    world.environments.ranking = rank
    assert await ends(world) == Ending("done")
    assert sizes == [3] * 10 and members(world) == dict.fromkeys(range(10), (1, 2, 4))


async def test_a_restart_knows_what_was_dropped(world: World) -> None:
    run = asyncio.ensure_future(world.go())
    while not instances(world):
        await asyncio.sleep(0)
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    world.restart()
    waiting = world.store.experience.waiting(1)
    assert waiting and all(group.dropped is not None and group.dropped.members == 2 for group in waiting)
    assert await ends(world) == Ending("done")
    check_history(world)
    assert metric(world, "dropped") == [pytest.approx(2 / 5)] * 5


def member(
    number: int,
    seconds: float,
    reward: float | None,
    status: EpisodeStatus = "ok",
    written: int = 2,
    left: bool = False,
) -> FinishedEpisode:
    mask = np.ones(written, np.uint8)
    said = tuple(
        Trajectory(agent, mask.astype(np.int32), mask, mask.astype(np.float32), (), value)
        for agent, value in ((AGENT, reward), (OTHER, 9.0 if reward is not None else None))
    )
    episode, outcome = Episode(number, status, said), EpisodeOutcome(status)
    return FinishedEpisode(episode, {}, None, outcome, seconds, dropped=left)


def test_those_that_failed_take_places_that_are_left() -> None:
    ended = [
        member(3, 1.0, None, "error"),
        member(1, 2.0, 1.0),
        member(4, 2.5, None, "error"),
        member(0, 3.0, 0.0),
        member(2, 3.0, None, "cancelled", left=True),
    ]
    closed, others = closing(ended, 3)
    assert [one.episode.member for one in closed] == [0, 1, 3]
    assert [one.episode.member for one in others] == [4, 2]
    closed, others = closing(ended, 2)
    assert [one.episode.member for one in closed] == [0, 1]
    assert [one.episode.member for one in others] == [3, 4, 2]


def test_what_is_known_of_the_dropped() -> None:
    closed = [member(0, 1.0, 0.0), member(1, 4.0, 1.0), member(2, 2.0, 0.5), member(3, 3.0, 0.5)]
    others = [
        member(4, 4.0, 2.0, written=5),
        member(5, 9.0, None, "cancelled", written=7, left=True),
        member(6, 9.0, None, "error"),
    ]
    assert dropped(closed, others, frozenset({AGENT})) == Dropped(7, 2, 13.0, 12, 10.0, (2.0,), 0.75 - 0.25)
    assert dropped(closed, others, None).tokens == 24
    assert dropped(closed[:1], (), None) == Dropped(1, 0, 0.0, 0, 1.0)
    assert reward_of(closed[0].episode, None) == 4.5


def test_what_was_said_before_a_drop_has_no_reward() -> None:
    assert dropped([], [member(5, 9.0, None, "cancelled", left=True)], None).rewards == ()
