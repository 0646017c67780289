"""What waits in the queue goes on by itself: tries, quotas, dependencies, also through another engine."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from marlaas.engine.environments.protocol import EpisodeSpec
from marlaas.engine.errors import EnvironmentMissing
from marlaas.engine.fairness.line import Usage
from marlaas.engine.machine.supervisor import WorkerSupervisor
from marlaas.engine.queue.scheduler import scheduler as module
from marlaas.engine.queue.scheduler.decision import PAUSES
from marlaas.engine.queue.scheduler.scheduler import Scheduler, blocked
from marlaas.engine.queue.submission.taskfile import submission
from marlaas.engine.spec.task import QueueSpec, TaskSpec
from marlaas.engine.store import tasks as tenants
from marlaas.engine.store.submissions import command, command_all, submit

from ...by_hand import change
from ...train.test_learning import SPEC
from .world import World


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL", 0.001)
    monkeypatch.setattr(module, "REVIEW", 0.002)


class Time:
    """Seconds since 1970, moved by hand."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def serving(world: World, clock: Time, slots: int = 4) -> AsyncIterator[Scheduler]:
    scheduler = Scheduler(world.store, cast(WorkerSupervisor, world), slots, clock)
    run = asyncio.ensure_future(scheduler.run())
    yield scheduler
    scheduler.stop()
    await run


async def until(world: World, said: Callable[[str, str], bool], task: int = 1) -> str:
    """Wait until a task's state and reason are as wanted; returns the reason."""
    async with asyncio.timeout(50):
        while True:
            (row,) = world.query(f"SELECT state, reason FROM tasks WHERE id = {task}")
            if said(row["state"], row["reason"]):
                return str(row["reason"])
            await asyncio.sleep(0)


def reached(wanted: str) -> Callable[[str, str], bool]:
    return lambda state, reason: state == wanted


def saying(words: str) -> Callable[[str, str], bool]:
    return lambda state, reason: state == "queued" and words in reason


def retrying(retries: int, **more: object) -> TaskSpec:
    return replace(SPEC, queue=QueueSpec(retries=retries), **more)  # type: ignore[arg-type]


class Breakage:
    """An environment that fails until it is mended."""

    def __init__(self, world: World) -> None:
        self.broken = True
        world.environments.failing = self

    def __call__(self, spec: EpisodeSpec) -> bool:
        return self.broken and spec.split == "train"


async def test_a_failing_environment_is_retried_ever_later(tmp_path: Path) -> None:
    world, clock = World(tmp_path, retrying(2)), Time()
    breakage = Breakage(world)
    async with serving(world, clock):
        reason = await until(world, saying("retrying in 10 s, 1st of 2 tries: The environment failed 24 groups"))
        assert "it broke (env.py, line 3)" in reason
        clock.now += 4
        await until(world, saying("retrying in 10 s"))
        clock.now += PAUSES[0]
        await until(world, saying("retrying in 60 s, 2nd of 2 tries"))
        breakage.broken = False
        clock.now += PAUSES[1]
        await until(world, reached("done"))
    assert world.query("SELECT retried, due, cause FROM tasks") == [{"retried": 2, "due": None, "cause": ""}]


async def test_when_the_tries_are_over_a_person_may_begin_anew(tmp_path: Path) -> None:
    world, clock = World(tmp_path, retrying(1)), Time()
    breakage = Breakage(world)
    async with serving(world, clock):
        await until(world, saying("1st of 1 try"))
        clock.now += PAUSES[0]
        await until(world, reached("paused"))
        command(world.home.database, "resume", 1)
        await until(world, saying("1st of 1 try"))
        breakage.broken = False
        command(world.home.database, "retry", 1)  # now, not when it is due
        await until(world, reached("done"))


async def test_a_try_is_still_due_for_the_next_engine(tmp_path: Path) -> None:
    world, clock = World(tmp_path, retrying(1)), Time()
    breakage = Breakage(world)
    async with serving(world, clock):
        await until(world, saying("1st of 1 try"))
    breakage.broken = False
    world.restart()
    async with serving(world, clock):
        for _ in range(50):
            await asyncio.sleep(0.001)
        await until(world, saying("retrying in 10 s, 1st of 1 try"))
        clock.now += PAUSES[0]
        await until(world, reached("done"))


async def test_a_mended_environment_is_tried_at_once(tmp_path: Path) -> None:
    world, clock = World(tmp_path, retrying(1)), Time()
    breakage = Breakage(world)
    async with serving(world, clock) as scheduler:
        await until(world, saying("1st of 1 try"))
        scheduler.wake(frozenset({"another"}))
        for _ in range(50):
            await asyncio.sleep(0.001)
        await until(world, saying("1st of 1 try"))
        breakage.broken = False
        scheduler.wake(frozenset({"sums", "plugin/sums"}))
        await until(world, reached("done"))


async def test_a_task_says_which_replaced_version_it_awaits(tmp_path: Path) -> None:
    world = World(tmp_path, SPEC)
    world.environments.ends = "waits for episodes on version e0"
    world.environments.gate = asyncio.get_running_loop().create_future()
    async with serving(world, Time()):
        await until(world, lambda state, reason: state == "running" and reason == "waits for episodes on version e0")
        world.environments.ends = ""
        world.environments.gate.set_result(0.0)
        await until(world, lambda state, reason: reason == "")
        await until(world, reached("done"))


async def test_what_the_task_itself_says_wrong_is_never_tried_again(tmp_path: Path) -> None:
    world = World(tmp_path, retrying(3, steps=40))
    world.environments.score = lambda spec: 1.0  # nothing to learn from
    async with serving(world, Time()):
        reason = await until(world, lambda state, reason: state in ("paused", "done"))
    assert reason.startswith("All 4 rewards were 1.00: it is solved. ")
    assert world.query("SELECT retried FROM tasks") == [{"retried": 0}]


async def test_a_chain_fails_together_and_is_retried_together(tmp_path: Path) -> None:
    world = World(tmp_path, replace(SPEC, steps=1000))
    submit(world.home.database, [replace(submission(replace(SPEC, name="next")), needs=(1,))])
    async with serving(world, Time()):
        await until(world, saying("waiting for task 1 (sums), which is running, step "), task=2)
        command(world.home.database, "cancel", 1)
        reason = await until(world, reached("failed"), task=2)
        assert reason == "It depends on task 1 (sums), which was cancelled. `marlaas retry 1 2` runs both."
        change(world.home.database, "UPDATE tasks SET config = json_set(config, '$.steps', 8)")
        command_all(world.home.database, "retry", [2, 1])
        await until(world, reached("done"), task=2)
    steps = world.query("SELECT policy, number FROM steps ORDER BY id")
    assert [step["policy"] for step in steps] == sorted(step["policy"] for step in steps)
    assert [step["number"] for step in steps if step["policy"] == 2] == list(range(1, 9))


async def test_a_task_of_another_base_is_not_retried(tmp_path: Path) -> None:
    world = World(tmp_path, SPEC)
    change(world.home.database, "UPDATE tasks SET state = 'failed', base = 'other'")
    async with serving(world, Time()):
        number = command(world.home.database, "retry", 1)
        async with asyncio.timeout(50):
            while world.store.tasks.new_commands():
                await asyncio.sleep(0)
    (row,) = world.query(f"SELECT outcome FROM commands WHERE id = {number}")
    assert "another base" in row["outcome"] and world.store.tasks.state(1) == "failed"


async def test_a_tenants_quota_of_tasks_holds_at_once(tmp_path: Path) -> None:
    world = World(tmp_path, replace(SPEC, steps=1000))
    submit(world.home.database, [submission(replace(SPEC, steps=1000))] * 2)
    async with serving(world, Time(), slots=3):
        command(world.home.database, "tenant", None, name=SPEC.tenant, tasks=2)
        submit(world.home.database, [submission(SPEC)])
        await until(world, saying(f"tenant {SPEC.tenant} runs "), task=4)
        command(world.home.database, "cancel", 1)
        command(world.home.database, "cancel", 2)
        await until(world, reached("done"), task=4)


async def test_tokens_of_the_day_hold_what_runs_until_midnight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, replace(SPEC, steps=30))
    monkeypatch.setattr(tenants, "today", lambda: "2026-11-21")
    async with serving(world, Time()):
        await until(world, reached("running"))
        command(world.home.database, "tenant", None, name=SPEC.tenant, tokens_per_day=10_000)
        world.store.tenants.add_use([Usage(1, "rollout", 10_000, 0.0)])
        await until(world, saying("has used its 10,000 tokens of the day; goes on at 00:00 UTC"))
        before = len(world.query("SELECT id FROM steps"))
        for _ in range(200):
            await asyncio.sleep(0)
        assert len(world.query("SELECT id FROM steps")) == before < 30
        world.store.tenants.set(SPEC.tenant, tokens_per_day=10**9)
        monkeypatch.setattr(tenants, "today", lambda: "2026-11-22")
        await until(world, reached("done"))
    assert [row["number"] for row in world.query("SELECT number FROM steps")] == list(range(1, 31))


async def test_a_blocked_task_says_so_until_its_environment_is_there(tmp_path: Path) -> None:
    world = World(tmp_path, replace(SPEC, environment="broken"))
    submit(world.home.database, [submission(replace(SPEC, steps=1000))])
    there = world.environments.validate
    async with serving(world, Time(), slots=1):
        await until(world, saying("There is no environment 'broken'"))
        await until(world, reached("running"), task=2)
        await until(world, saying("There is no environment 'broken'"))
        world.environments.validate = lambda name, config, version=None: config  # type: ignore[method-assign]
        command(world.home.database, "cancel", 2)
        await until(world, reached("done"))
    told = [row["message"] for row in world.query("SELECT message FROM events WHERE task = 1 ORDER BY id")]
    waits = "The task is blocked: There is no environment 'broken'."
    said = [message for message in told if message.startswith("The task")]  # not that evaluations are slow
    assert said == [waits, "The task goes on.", "The task is done."]  # once, however often it was tried
    with pytest.raises(EnvironmentMissing):
        there("broken", {})


def test_many_blocked_tasks_share_a_few_tries_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "monotonic", lambda: 100.0)
    world = World(tmp_path, SPEC, others=[SPEC] * 99)
    scheduler = Scheduler(world.store, cast(WorkerSupervisor, world), slots=4)
    for task in (world.task, *world.others):
        scheduler._record(task, blocked("it is broken"))
    moments = [wait.until or 0.0 for wait in scheduler._waits.values()]
    assert moments[0] == 100.0 + module.REVIEW and moments[-1] == 100.0 + 99 / module.TRIES
    scheduler.wake()
    assert not scheduler._situation().tried


async def test_engines_may_come_and_go_in_the_middle_of_all_of_it(tmp_path: Path) -> None:
    """A chain, a sweep behind it, tries, a quota, one slot after another: every engine lives for some turns only."""
    world, clock, chance = World(tmp_path, retrying(50)), Time(), random.Random(3)
    first = submission(retrying(50))
    submit(world.home.database, [replace(first, needs=(1,)), *[replace(first, family="sums", after=(0,))] * 3])
    command(world.home.database, "tenant", None, name=SPEC.tenant, tasks=2)
    world.environments.failing = lambda spec: spec.split == "train" and chance.random() < 0.5
    engines = 0
    async with asyncio.timeout(60):
        while set(states := [row["state"] for row in world.query("SELECT state FROM tasks")]) != {"done"}:
            assert not {"failed", "paused", "cancelled"} & set(states)
            async with serving(world, clock, slots=3):
                for _ in range(chance.randint(20, 400)):
                    await asyncio.sleep(0)
            engines += 1
            clock.now += PAUSES[-1]
            world.restart()
    assert engines > 3
    for policy in world.query("SELECT id FROM policies"):
        steps = world.query(f"SELECT number FROM steps WHERE policy = {policy['id']} ORDER BY id")
        assert [step["number"] for step in steps] == list(range(1, SPEC.steps + 1))
    ended = {row["id"]: row["finished"] for row in world.query("SELECT id, finished FROM tasks")}
    began = {row["id"]: row["started"] for row in world.query("SELECT id, started FROM tasks")}
    assert ended[1] < began[2] and all(ended[2] < began[member] for member in (3, 4, 5))
