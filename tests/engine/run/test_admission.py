"""The staleness bound holds by construction, for every order in which things can happen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.rollout.episodes import EPISODES
from marlaas.engine.run.admission import Admitted, Admitting, may_begin, step_groups
from marlaas.engine.run.background import Background
from marlaas.engine.run.groups.producer import Producer
from marlaas.engine.spec.task import SamplingSpec, TaskSpec, TrainSpec
from marlaas.engine.store.experience import ExperienceTable


@given(
    groups_per_step=st.integers(1, 5),
    max_staleness=st.integers(0, 4),
    choices=st.lists(st.integers(0, 2**30), min_size=1, max_size=200),
)
def test_no_trained_group_is_older_than_the_bound(groups_per_step: int, max_staleness: int, choices: list[int]) -> None:
    version, admitted = 0, 0
    running: dict[int, int] = {}  # number -> version at which it began
    complete: dict[int, int] = {}
    for choice in choices:
        while may_begin(admitted, version, groups_per_step, max_staleness):
            running[admitted] = version
            admitted += 1
        assert running or complete, "nothing can go on"
        if running:
            number = sorted(running)[choice % len(running)]
            complete[number] = running.pop(number)
        wanted = step_groups(version, groups_per_step)
        if all(number in complete for number in wanted):
            ages = [version - complete.pop(number) for number in wanted]
            assert all(0 <= age <= max_staleness for age in ages)
            version += 1


@given(st.integers(0, 100), st.integers(1, 8))
def test_staleness_zero_is_the_synchronous_algorithm(version: int, groups_per_step: int) -> None:
    allowed = [n for n in range((version + 3) * groups_per_step) if may_begin(n, version, groups_per_step, 0)]
    assert allowed[-1] == step_groups(version, groups_per_step)[-1]


@given(st.integers(0, 50), st.integers(1, 8))
def test_steps_share_no_group_and_leave_none_out(step: int, groups_per_step: int) -> None:
    assert step_groups(step, groups_per_step).stop == step_groups(step + 1, groups_per_step).start


@dataclass
class Everything:
    """A policy that wants 60 groups, all of them at once; a store without any; and a producer of groups that end when
    they are told to."""

    group_size: int = 8
    name: str = "policy"
    policy: int = 1
    first: int = 0
    end: int = 60
    begun: list[int] = field(default_factory=list)
    over: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    """Members that may end."""
    anew: int = 0
    """Members that are to be played anew when the next one ends."""
    scored: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the members have their scores."""
    again: set[int] = field(default_factory=set)
    held: list[int] = field(default_factory=list)
    """Groups that waited while nothing was played."""
    place: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec(
            "lab",
            "task",
            "arithmetic",
            train=TrainSpec(group_size=self.group_size),
            sampling=SamplingSpec(max_tokens=32, max_episode_tokens=256),
        )

    @property
    def pool(self) -> Everything:
        return self

    def put(self, closed: object) -> None: ...

    def needs(self, number: int) -> bool:
        return True

    def may_begin(self, number: int, draining: bool) -> bool:
        return not draining

    def held_up(self, number: int, began: float) -> None:
        self.held.append(number)

    def waiting(self, policy: int) -> list[Any]:
        return []

    def consumed(self, policy: int, first: int) -> set[int]:
        return set()

    def begin(self) -> None: ...

    async def room(self, number: int, policies: Iterable[str]) -> None:
        await self.place.wait()

    async def fill(
        self, number: int, wanting: Sequence[Any], more: Callable[[int], None], put: Any
    ) -> Mapping[str, Any]:
        self.begun.append(number)
        left = self.group_size
        while left:
            await self.over.acquire()
            left, anew, self.anew = left - 1 + self.anew, self.anew, 0
            more(anew - 1)
        await self.scored.wait()
        return {self.name: None}


def admitting(all: Everything, draining: asyncio.Event | None = None) -> Admitting:
    policies = [cast(Admitted, all)]
    return Admitting(cast(ExperienceTable, all), policies, asyncio.Event(), draining or asyncio.Event())


async def settled() -> None:
    for _ in range(200):
        await asyncio.sleep(0)


@pytest.mark.parametrize(("group_size", "most"), [(8, 32), (100, 3), (256, 1), (300, 1), (2, 60)])
async def test_a_group_begins_where_one_member_has_room(group_size: int, most: int) -> None:
    """It waits for no other group to close: the last member of each may take as long as it likes."""
    all = Everything(group_size)
    all.place.set()
    async with Background() as background:
        background.produce(admitting(all).run(cast(Producer, all), background))
        await settled()
        assert all.begun == [*range(most)] and (most - 1) * group_size < EPISODES
        for _ in range(max(0, most * group_size - EPISODES)):
            all.over.release()
        await settled()
        assert all.begun == [*range(most)]
        all.over.release()
        await settled()
        assert all.begun == [*range(min(60, most + 1))]


async def test_what_is_filled_again_takes_its_room() -> None:
    all = Everything(128)
    all.place.set()
    async with Background() as background:
        admission = admitting(all)
        background.produce(admission.run(cast(Producer, all), background))
        await settled()
        assert all.begun == [0, 1]
        all.anew = 128
        for _ in range(128):
            all.over.release()
        await settled()
        assert all.begun == [0, 1], "the first was played to its end, and is played anew"


async def test_groups_that_wait_for_scores_keep_no_others_waiting() -> None:
    all = Everything()
    all.place.set()
    async with Background() as background:
        background.produce(admitting(all).run(cast(Producer, all), background))
        await settled()
        assert all.begun == [*range(32)]
        for _ in range(5 * all.group_size):
            all.over.release()
        await settled()
        assert all.begun == [*range(37)]
        all.scored.set()
        await settled()
        assert all.begun == [*range(37)], "their members gave their room back once"


async def test_groups_wait_while_episodes_wait_for_a_place() -> None:
    all = Everything()
    async with Background() as background:
        background.produce(admitting(all).run(cast(Producer, all), background))
        await settled()
        assert all.begun == []
        all.place.set()
        await settled()
        assert len(all.begun) == 32


async def test_only_a_group_that_waits_beside_nothing_counts() -> None:
    all, moved = Everything(group_size=1), asyncio.Event()
    allowed, all.end = 2, 4
    all.place.set()
    all.scored.set()
    policies = [cast(Admitted, all)]
    all.may_begin = lambda number, draining: number < allowed  # type: ignore[method-assign]
    admission = Admitting(cast(ExperienceTable, all), policies, moved, asyncio.Event())
    async with Background() as background:
        background.produce(admission.run(cast(Producer, all), background))
        await settled()
        assert (all.begun, all.held) == ([0, 1], [])
        all.over.release()
        await settled()
        assert all.held == [], "another group is still played"
        all.over.release()
        await settled()
        allowed = 4
        moved.set()
        await settled()
        assert all.begun == [0, 1, 2, 3] and all.held == [2]


async def test_an_engine_that_drains_begins_nothing_that_waited() -> None:
    all, draining = Everything(), asyncio.Event()
    async with Background() as background:
        admission = admitting(all, draining)
        running = asyncio.ensure_future(admission.run(cast(Producer, all), background))
        await settled()
        draining.set()
        all.place.set()
        await settled()
        assert all.begun == [] and not running.done()
        admission.stop()
        await running
