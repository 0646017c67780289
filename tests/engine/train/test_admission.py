"""The staleness bound holds by construction, for every order in which things can happen; nobody waits for ever."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from marlaas.engine.machine.supervisor import WorkerSupervisor
from marlaas.engine.queue.scheduler.scheduler import Ending, run_task
from marlaas.engine.rollout.episodes import Rollout
from marlaas.engine.spec.task import EvalSpec, NamedPolicySpec, SamplingSpec, TaskSpec, TrainSpec
from marlaas.engine.store.experience import ExperienceTable
from marlaas.engine.train import admission as module
from marlaas.engine.train.admission import (
    CALL_TOKENS,
    Admission,
    Background,
    GroupRun,
    PolicyGroups,
    step_groups,
)
from marlaas.engine.train.groups import GroupRunner
from marlaas.engine.trainer.advantages import ClosedGroup, RewardSummary
from marlaas.engine.trajectories import Episode, Group, Trajectory
from tests.oracle.audit import audit

from ...examples import examples
from ..queue.scheduler.world import World
from .test_open_plays import TWO, groups, until
from .test_several_policies import AGENTS, consumed, steps, world

LIMITS = SamplingSpec(max_tokens=32, max_episode_tokens=256)


def policy(name: str = "policy", steps: int = 1, kind: type[PolicyGroups] = PolicyGroups, **train: Any) -> Any:
    """The groups of a policy that stands at version 0."""
    spec = TaskSpec("lab", "task", "sums", steps=steps, sampling=LIMITS, train=TrainSpec(**train))
    return kind(name, 1, spec, 0, asyncio.Event())


def closed(number: int, tokens: int = 1, version: int = 0) -> ClosedGroup:
    none, floats = np.zeros(tokens, np.uint8), np.zeros(tokens, np.float32)
    trajectory = Trajectory("agent", np.zeros(tokens, np.int32), none, floats, ())
    episode = Episode(0, "ok", (trajectory,))
    return ClosedGroup(Group(number, number, version, "e", (episode,)), RewardSummary(2, 0.5, 0.5, False, 0.0, 1.0))


class Nothing:
    """A store without groups."""

    def consumed(self, policy: int, first: int) -> set[int]:
        return set()

    def waiting(self, policy: int) -> list[Group]:
        return []


def admission(
    policies: Sequence[PolicyGroups],
    moved: asyncio.Event | None = None,
    draining: asyncio.Event | None = None,
    **more: Any,
) -> Admission:
    store = cast(ExperienceTable, Nothing())
    return Admission(store, policies, moved or asyncio.Event(), draining or asyncio.Event(), **more)


async def take(pool: PolicyGroups, wanted: set[int], one_by_one: bool = False) -> list[int]:
    return [group.group.number for group in await pool.take_ready(sorted(wanted), len(wanted), one_by_one)]


async def test_no_call_is_so_large_that_others_wait_for_long() -> None:
    pool = policy(groups_per_step=8)
    for number, tokens in enumerate((CALL_TOKENS // 2, CALL_TOKENS // 2, 1, 2 * CALL_TOKENS)):
        pool.put(closed(number, tokens))
    assert await take(pool, {0, 1, 2, 3}) == [0, 1]
    assert await take(pool, {2, 3}) == [2]
    assert await take(pool, {3}) == [3]


async def test_a_complete_group_that_grows_too_old_begins_again() -> None:
    pool = policy(groups_per_step=2, steps=9, order="arrival", max_staleness=1)
    for number, version in ((0, 0), (1, 1)):
        pool.put(closed(number, version=version))
    pool.taken = 2
    pool.give_up_stale()
    assert pool.next_number() == 0 and pool.given_up == 1 and await take(pool, {0, 1}) == [1]


class Steps(PolicyGroups):
    """Makes a step when all of its groups are there, and serves it at once."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.versions: dict[int, int] = {}
        """By number, the version at which a group began."""
        self.ages: list[int] = []

    @property
    def ready(self) -> bool:
        due = step_groups(self.served, self.batch)
        return self.served < self.spec.steps and all(number in self.versions for number in due)

    def put(self, group: ClosedGroup) -> None:
        assert group.group.number not in self.versions, "it is trained on a number twice"
        self.versions[group.group.number] = group.group.version

    def step(self) -> None:
        self.ages += [self.served - self.versions[number] for number in step_groups(self.served, self.batch)]
        self.served = self.taken = self.committed = self.served + 1


class Stage:
    """Groups and steps that end when they are told to, under the real admission and a clock for the test."""

    def __init__(self, policies: Sequence[Steps], seed: int) -> None:
        self.policies = policies
        self.random = random.Random(seed)
        self.now = 0.0
        self.running: list[asyncio.Event] = []
        self.groups: list[tuple[int, frozenset[str]]] = []

    def begin(self) -> None: ...

    async def room(self, number: int, policies: Iterable[str]) -> None:
        for _ in range(self.random.randint(0, 3)):
            await asyncio.sleep(0)

    async def fill(self, group: GroupRun) -> None:
        over = asyncio.Event()
        began = {name: closed(group.number, version=one.served) for name, one in group.waiting.items()}
        self.groups.append((group.number, frozenset(began)))
        self.running.append(over)
        await over.wait()
        group.count(-group.samples)
        for name in self.random.sample(sorted(began), len(began)):
            group.close(name, began[name])

    async def run(self, held: frozenset[str]) -> None:
        """Until nothing can move any more; policies ``held`` make no step."""
        moved = asyncio.Event()
        async with Background() as background:
            admitting = admission(self.policies, moved, clock=lambda: self.now)
            background.produce(admitting.run(cast(GroupRunner, self), background))
            idle = 0
            while idle < 3:
                for _ in range(20):
                    await asyncio.sleep(0)
                ready = [one for one in self.policies if one.ready and one.name not in held]
                moves = len(self.running) + len(ready)
                if not moves:
                    idle += 1
                    self.now += 10.0  # longer than any group
                    moved.set()
                    continue
                idle, self.now = 0, self.now + self.random.random()
                choice = self.random.randrange(moves)
                if choice < len(self.running):
                    self.running.pop(choice).set()
                else:
                    ready[choice - len(self.running)].step()
                    moved.set()
            background.stop_producing()


def stepping(name: str, batch: int, bound: int, steps: int, **train: Any) -> Steps:
    made = policy(name, steps, Steps, groups_per_step=batch, max_staleness=bound, group_size=2, **train)
    assert isinstance(made, Steps)
    return made


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
    policies = [stepping(f"p{place}", *sizes) for place, sizes in enumerate(given)]
    stage = Stage(policies, seed)
    still = frozenset(one.name for place, one in enumerate(policies) if held >> place & 1)
    await stage.run(still)
    for one in policies:
        bound = one.spec.train.max_staleness
        if one.name in still:
            assert one.served == 0 and max(one.versions, default=-1) < (bound + 1) * one.batch
        else:
            assert one.served == one.spec.steps and sorted(one.versions) == [*range(one.end)]
        assert all(0 <= age <= bound for age in one.ages)
        mine = Counter(number for number, names in stage.groups if one.name in names)
        assert set(mine.values()) <= {1}


@pytest.mark.parametrize("train", [{"deterministic": True}, {"sampling": "difficulty"}, {}])
async def test_some_tasks_run_every_number_for_all(train: dict[str, Any]) -> None:
    """What a curriculum draws follows from the first policy's groups, so nobody may be ahead of it."""
    stage = Stage([stepping("a", 1, 1, 5, **train), stepping("b", 1, 1, 5, **train)], 0)
    await stage.run(frozenset("a"))
    assert (stage.policies[1].served == 5) is not bool(train)
    assert {names for _, names in stage.groups} == {frozenset("ab"), *([] if train else [frozenset("b")])}


async def test_a_policy_whose_partner_learns_slowly_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The critic's first version is not served; the solver is trained to its end, and the critic later."""
    monkeypatch.setattr(module, "PATIENCE", 0.0)
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


async def test_what_fails_while_it_is_cut_off_interrupts_nobody() -> None:
    ended = []

    async def fails_at_its_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("too late")

    async def slow_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            ended.append(1)

    with pytest.raises(KeyError):
        async with Background() as background:
            background.start(fails_at_its_end())
            background.start(slow_end())
            await asyncio.sleep(0)
            raise KeyError("the body's own")
    assert ended == [1]
    current = asyncio.current_task()
    assert current is not None and not current.cancelling()


SLOTS, TASKS, SIZE, BATCH = 4, 2, 4, 4


def spec(number: int) -> TaskSpec:
    train = TrainSpec(groups_per_step=BATCH, group_size=SIZE, max_staleness=3, seed=number)
    return TaskSpec(
        f"tenant {number % 2}", f"task {number}", "sums", steps=2, train=train, eval=EvalSpec(every=0, prompts=1)
    )


async def test_few_episodes_live_whatever_the_number_of_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live, most, play = 0, 0, Rollout.run_episode

    async def counted(*arguments: object, **named: object) -> object:
        nonlocal live, most
        live += 1
        most = max(most, live)
        try:
            return await play(*arguments, **named)  # type: ignore[arg-type]
        finally:
            live -= 1

    monkeypatch.setattr(Rollout, "run_episode", counted)
    specs = [spec(number) for number in range(TASKS)]
    world = World(tmp_path, specs[0], sequences=SLOTS, others=specs[1:])
    tasks = zip((world.task, *world.others), specs, strict=True)
    runs = (run_task(task, own, cast(WorkerSupervisor, world), lambda learner: None) for task, own in tasks)
    ends = await asyncio.wait_for(asyncio.gather(*runs), 120)
    assert ends == [Ending("done")] * TASKS
    begun_at_once = TASKS * 2 * BATCH * SIZE  # all that the bound on staleness allows
    assert most <= SLOTS + SLOTS + TASKS * 3 * SIZE < begun_at_once, "in slots, in line, and three groups of each task"
