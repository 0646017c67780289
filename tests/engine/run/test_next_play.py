"""Who waits for whom: a play is for all who need it, and whoever has waited for as long as a play takes goes on."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings, strategies as st

from marlaas.engine.rollout.episodes import EPISODES
from marlaas.engine.run import next_play as module
from marlaas.engine.run.admission import Admitted, Admitting, may_begin, step_groups
from marlaas.engine.run.background import Background
from marlaas.engine.run.groups.producer import Producer
from marlaas.engine.run.next_play import LEAST, NextPlay, Waits, Wish, next_play
from marlaas.engine.scheduler.task_run import Ending
from marlaas.engine.spec.policies import NamedPolicySpec
from marlaas.engine.spec.task import SamplingSpec, TaskSpec, TrainSpec
from marlaas.engine.store.experience import ExperienceTable
from tests.oracle.audit import audit

from ...examples import examples
from .groups.test_early_groups import TWO, groups, until
from .test_several_policies import AGENTS, consumed, steps, world

LIMITS = SamplingSpec(max_tokens=32, max_episode_tokens=256)


@pytest.mark.parametrize(
    ("wishes", "alone", "begins"),
    [
        ([], {}, None),
        ([("a", 3, True)], {}, (3, "a")),
        ([("a", 3, True), ("b", 3, True)], {}, (3, "ab")),
        ([("a", 3, True), ("b", 3, False)], {}, None),
        ([("a", 3, True), ("b", 3, False)], {"a": 3}, None),
        ([("a", 3, True), ("b", 3, False)], {"a": 4}, (3, "a")),
        ([("a", 3, True), ("b", 3, True), ("c", 3, False)], {"a": 4}, (3, "a")),
        ([("a", 5, True), ("b", 3, True)], {}, (3, "b")),
        ([("a", 5, True), ("b", 3, False)], {}, None),
        ([("a", 5, True), ("b", 3, False)], {"a": 6}, (5, "a")),
        ([("a", 5, True), ("b", 3, True), ("c", 3, False)], {}, None),
        ([("a", 5, False), ("b", 5, False)], {"a": 9, "b": 9}, None),
    ],
)
def test_what_begins_next(
    wishes: list[tuple[str, int, bool]], alone: dict[str, int], begins: tuple[int, str] | None
) -> None:
    expected = begins and NextPlay(begins[0], frozenset(begins[1]))
    assert next_play([Wish(*wish) for wish in wishes], alone) == expected


def test_a_policy_waits_for_as_long_as_a_play_takes() -> None:
    now = [0.0]
    waits = Waits(lambda: now[0])
    assert waits.left("a", True) == float("inf"), "nobody knows yet how long a play takes"
    for policy in "ab":
        waits.took(policy, 5.0)
    assert waits.left("a", True) == 5.0
    now[0] = 3.0
    assert waits.left("a", True) == 2.0 and waits.left("b", True) == 5.0
    assert waits.left("a", False) == float("inf") and waits.left("a", True) == 5.0, "it has played meanwhile"
    now[0] = 99.0
    assert waits.left("b", True) == 0.0
    quick = Waits(lambda: now[0])
    quick.took("a", 1e-3)
    assert quick.left("a", True) == LEAST


@dataclass
class Policy:
    """One that makes a step when all of its groups are there; ``version`` is the one that is served."""

    name: str
    batch: int
    bound: int
    last: int
    first: int = 0
    version: int = 0
    there: dict[int, int] = field(default_factory=dict)
    """By number, the version at which a group began."""
    ages: list[int] = field(default_factory=list)
    again: set[int] = field(default_factory=set)

    @property
    def policy(self) -> str:
        return self.name

    @property
    def pool(self) -> Policy:
        return self

    @property
    def spec(self) -> TaskSpec:
        train = TrainSpec(groups_per_step=self.batch, group_size=2)
        return TaskSpec("lab", "task", "sums", sampling=LIMITS, train=train)

    @property
    def end(self) -> int:
        return self.last * self.batch

    @property
    def ready(self) -> bool:
        due = step_groups(self.version, self.batch)
        return self.version < self.last and all(number in self.there for number in due)

    def needs(self, number: int) -> bool:
        return self.first <= number < self.end

    def may_begin(self, number: int, draining: bool) -> bool:
        return may_begin(number, self.version, self.batch, 0 if draining else self.bound)

    def held_up(self, number: int, began: float) -> None:
        assert self.needs(number)

    def put(self, began: Any) -> None:
        number, version = began
        assert number not in self.there, "it is trained on a number twice"
        self.there[number] = version

    def step(self) -> None:
        self.ages += [self.version - self.there[number] for number in step_groups(self.version, self.batch)]
        self.version += 1


class Stage:
    """Plays and steps that end when they are told to, under the real admission and a clock of its own."""

    def __init__(self, policies: list[Policy], seed: int) -> None:
        self.policies = policies
        self.random = random.Random(seed)
        self.now = 0.0
        self.playing: list[tuple[asyncio.Event, frozenset[str]]] = []
        self.plays: list[tuple[int, frozenset[str]]] = []

    def consumed(self, policy: str, first: int) -> set[int]:
        return set()

    def waiting(self, policy: str) -> list[Any]:
        return []

    def begin(self) -> None: ...

    async def room(self, number: int, policies: Iterable[str]) -> None:
        for _ in range(self.random.randint(0, 3)):
            await asyncio.sleep(0)

    async def fill(self, number: int, wanting: Any, more: Any, put: Any) -> dict[str, Any]:
        over, names = asyncio.Event(), frozenset(policy.name for policy in wanting)
        began = {policy.name: (number, policy.version) for policy in wanting}
        self.plays.append((number, names))
        self.playing.append((over, names))
        await over.wait()
        more(-wanting[0].spec.train.begun_members)
        for name in self.random.sample(sorted(names), self.random.randint(0, len(names))):
            put(name, began.pop(name))
        return began

    async def run(self, held: frozenset[str]) -> None:
        """Until nothing can move any more; policies ``held`` make no step."""
        moved = asyncio.Event()
        admitted = [cast(Admitted, policy) for policy in self.policies]
        admitting = Admitting(cast(ExperienceTable, self), admitted, moved, asyncio.Event(), clock=lambda: self.now)
        async with Background() as background:
            background.produce(admitting.run(cast(Producer, self), background))
            idle = 0
            while idle < 3:
                for _ in range(20):
                    await asyncio.sleep(0)
                ready = [policy for policy in self.policies if policy.ready and policy.name not in held]
                moves = len(self.playing) + len(ready)
                if not moves:
                    idle += 1
                    self.now += 10.0  # longer than any play
                    moved.set()
                    continue
                idle, self.now = 0, self.now + self.random.random()
                choice = self.random.randrange(moves)
                if choice < len(self.playing):
                    self.playing.pop(choice)[0].set()
                else:
                    ready[choice - len(self.playing)].step()
                    moved.set()
            background.stop_producing()


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2), st.integers(1, 5)), min_size=1, max_size=3),
    st.integers(0, 10**6),
    st.integers(0, 7),
)
async def test_nobody_is_held_up_or_trained_on_what_is_too_old(
    given: list[tuple[int, int, int]], seed: int, held: int
) -> None:
    """Whoever makes no step, the others come to their end, each number once, within the bound of each."""
    policies = [Policy(f"p{place}", *one) for place, one in enumerate(given)]
    stage = Stage(policies, seed)
    still = frozenset(policy.name for place, policy in enumerate(policies) if held >> place & 1)
    await stage.run(still)
    for policy in policies:
        if policy.name in still:
            assert policy.version == 0 and max(policy.there, default=-1) < (policy.bound + 1) * policy.batch
        else:
            assert policy.version == policy.last and sorted(policy.there) == [*range(policy.end)]
        assert all(0 <= age <= policy.bound for age in policy.ages)
        mine = Counter(number for number, names in stage.plays if policy.name in names)
        assert set(mine.values()) <= {1}


@pytest.mark.parametrize("train", [{"deterministic": True}, {"sampling": "difficulty"}, {}])
async def test_some_tasks_play_every_number_for_all(train: dict[str, Any]) -> None:
    """What a curriculum draws follows from the first policy's groups, so nobody may be ahead of it."""

    class Own(Policy):
        @property
        def spec(self) -> TaskSpec:
            return replace(super().spec, train=replace(super().spec.train, **train))

    stage = Stage([Own("a", 1, 1, 5), Own("b", 1, 1, 5)], 0)
    await stage.run(frozenset("a"))
    assert (stage.policies[1].version == 5) is not bool(train)
    assert {names for _, names in stage.plays} == {frozenset("ab"), *([] if train else [frozenset("b")])}


@dataclass
class Large(Policy):
    """Its groups fill all the room that a task has, and it counts how often it is asked what it needs."""

    asked: int = 0

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec("lab", "task", "sums", sampling=LIMITS, train=TrainSpec(groups_per_step=1, group_size=EPISODES))

    def needs(self, number: int) -> bool:
        self.asked += 1
        return super().needs(number)


async def test_where_there_is_no_room_nobody_looks_for_it() -> None:
    """A policy has its group early and could go on, but the others' members still fill the room."""
    policies, now, moved = [Large("a", 1, 0, 9), Large("b", 1, 0, 9)], [0.0], asyncio.Event()

    class Early(Stage):
        async def fill(self, number: int, wanting: Any, more: Any, put: Any) -> dict[str, Any]:
            self.plays.append((number, frozenset(policy.name for policy in wanting)))
            now[0] += 5.0
            put("a", (number, 0))
            await asyncio.Event().wait()
            return {}

    stage = Early([*policies], 0)
    admitted = [cast(Admitted, policy) for policy in policies]
    admitting = Admitting(cast(ExperienceTable, stage), admitted, moved, asyncio.Event(), clock=lambda: now[0])
    async with Background() as background:
        background.produce(admitting.run(cast(Producer, stage), background))
        await until(lambda: policies[0].ready)
        policies[0].step()
        for _ in range(3):
            now[0] += 100.0
            moved.set()
            for _ in range(50):
                await asyncio.sleep(0)
        before = policies[0].asked
        for _ in range(500):
            await asyncio.sleep(0)
        assert policies[0].asked == before and len(stage.plays) == 1
        background.stop_producing()


async def test_a_policy_whose_partner_learns_slowly_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The critic's first version is not served; the solver is trained to its end, and the critic later."""
    monkeypatch.setattr(module, "LEAST", 0.0)
    policies = dict.fromkeys(AGENTS, NamedPolicySpec(rank=1, alpha=1.0))
    here = world(tmp_path, replace(TWO, policies=policies))
    over = asyncio.Event()
    sampler = here.workers.sampler
    load = sampler.load

    async def held(name: str, path: str) -> str:
        if "critic-v1" in name:
            await over.wait()
        return await load(name, path)

    monkeypatch.setattr(sampler, "load", held)
    run = asyncio.ensure_future(here.go())
    await until(lambda: steps(here).get("solver") == TWO.steps)
    assert steps(here)["critic"] == 1 and {row["version"] for row in groups(here, "critic")} == {0}
    over.set()
    assert await run == Ending("done")
    once = Counter({(number, number // 2 + 1): 1 for number in range(2 * TWO.steps)})
    assert consumed(here) == {"solver": once, "critic": once}
    said = here.query("SELECT DISTINCT agent, speaker FROM trajectories WHERE speaker != ''")
    assert {(row["agent"], row["speaker"]) for row in said} >= {("critic", "critic")}
    here.store.tasks.set_state(here.task, "done")
    assert audit(here.home.root, updates=False).problems == []


async def test_a_deterministic_task_plays_for_all_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST", 0.0)
    train = replace(TWO.train, deterministic=True, max_staleness=0)
    here = world(tmp_path, replace(TWO, train=train))
    assert await here.go() == Ending("done")
    plays = here.query("SELECT count(*) AS n FROM groups WHERE split = 'train' GROUP BY coalesce(play, id)")
    assert {row["n"] for row in plays} == {2}
