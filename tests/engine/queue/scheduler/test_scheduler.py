"""The scheduler: slots, tries, quotas, dependencies, lost workers, pinned environments, and who hears of it."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from marlaas.engine.environments.protocol import EpisodeSpec
from marlaas.engine.environments.service import EnvironmentService
from marlaas.engine.errors import EnvironmentMissing, StoreError, WorkerDied
from marlaas.engine.fairness.line import Usage
from marlaas.engine.queue.scheduler import scheduler as module
from marlaas.engine.queue.scheduler.decision import PAUSES
from marlaas.engine.queue.scheduler.scheduler import MAX_DEATHS, Ending, run_task
from marlaas.engine.queue.submission.taskfile import submission
from marlaas.engine.spec.task import CUT_REPLIES, EvalSpec, QueueSpec, TaskSpec
from marlaas.engine.store import tasks as tenants
from marlaas.engine.store.submissions import command, command_all, submit
from marlaas.engine.train.watch import DETECTORS

from ....seldom import seldom
from ...by_hand import change
from ...train.test_learning import SPEC, check_history
from .serving import Heard, Time, answered, reaches, serving, until, waits
from .world import World


async def test_a_command_that_the_disk_refused_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, replace(SPEC, steps=1000))
    finish, refusals = world.store.tasks.finish_command, [1, 2]

    def refuse(number: int, outcome: str = "") -> None:
        if refusals.pop() == 2:
            raise StoreError("The disk is full.")
        finish(number, outcome)

    monkeypatch.setattr(world.store.tasks, "finish_command", refuse)
    async with serving(world, 1):
        await reaches(world, world.task, "running")
        await answered(world, "cancel", world.task)
    assert world.store.tasks.state(world.task) == "cancelled" and not refusals


async def test_commands_do_not_wait_between_looks_at_a_long_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONG", 0)
    monkeypatch.setattr(module, "LOOKED_AT", 0.001)
    world = World(tmp_path, replace(SPEC, steps=1000))
    (other,) = submit(world.home.database, [submission(replace(SPEC, steps=1000))])
    async with serving(world, 2) as scheduler:
        for task in (world.task, other):
            await reaches(world, task, "running")
        command(world.home.database, "cancel", world.task)
        await reaches(world, world.task, "cancelled")
        scheduler.drain()
        async with asyncio.timeout(50):
            while not scheduler.stopping:
                await asyncio.sleep(0)
    assert world.store.tasks.state(other) == "running"


async def test_a_task_that_ended_in_the_same_moment_stays_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, SPEC)

    async def ends(task: int, *_: object) -> Ending:
        command(world.home.database, "pause", task)
        return Ending("done")

    monkeypatch.setattr("marlaas.engine.queue.scheduler.scheduler.run_task", ends)
    async with serving(world, 1):
        async with asyncio.timeout(50):
            while not world.query("SELECT 1 FROM commands WHERE done IS NOT NULL"):
                await asyncio.sleep(0)
    assert world.store.tasks.state(world.task) == "done"
    (row,) = world.query("SELECT outcome FROM commands")
    assert "A task that is done cannot be paused" in row["outcome"]


async def test_a_task_of_another_program_fails_alone(tmp_path: Path) -> None:
    world = World(tmp_path, SPEC)
    (other,) = submit(world.home.database, [submission(SPEC)])
    change(world.home.database, "UPDATE tasks SET config = json_set(config, '$.colour', 'green') WHERE id = 1")
    async with serving(world, 1):
        await reaches(world, other, "done")
    (row,) = world.query("SELECT state, reason FROM tasks WHERE id = 1")
    assert row["state"] == "failed" and "unknown key 'colour'" in row["reason"]


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
    async with serving(world, clock=clock):
        reason = await waits(world, "retrying in 10 s, try 1 of 2: The environment failed 24 groups")
        assert "it broke (env.py, line 3)" in reason
        clock.now += 4
        await waits(world, "retrying in 10 s")
        clock.now += PAUSES[0]
        await waits(world, "retrying in 60 s, try 2 of 2")
        breakage.broken = False
        clock.now += PAUSES[1]
        await reaches(world, 1, "done")
    assert world.query("SELECT retried, due, cause FROM tasks") == [{"retried": 2, "due": None, "cause": ""}]


async def test_when_the_tries_are_over_a_person_may_begin_anew(tmp_path: Path) -> None:
    world, clock = World(tmp_path, retrying(1)), Time()
    breakage = Breakage(world)
    async with serving(world, clock=clock):
        await waits(world, "try 1 of 1")
        clock.now += PAUSES[0]
        await reaches(world, 1, "paused")
        command(world.home.database, "resume", 1)
        await waits(world, "try 1 of 1")
        breakage.broken = False
        command(world.home.database, "retry", 1)  # now, not when it is due
        await reaches(world, 1, "done")


async def test_a_mended_environment_is_tried_at_once(tmp_path: Path) -> None:
    world, clock = World(tmp_path, retrying(1)), Time()
    breakage = Breakage(world)
    async with serving(world, clock=clock) as scheduler:
        await waits(world, "try 1 of 1")
        scheduler.wake(frozenset({"another"}))
        for _ in range(50):
            await asyncio.sleep(0.001)
        await waits(world, "try 1 of 1")
        breakage.broken = False
        scheduler.wake(frozenset({"sums", "plugin/sums"}))
        await reaches(world, 1, "done")


async def test_what_the_task_itself_says_wrong_is_never_tried_again(tmp_path: Path) -> None:
    world = World(tmp_path, retrying(3, steps=40))
    world.environments.score = lambda spec: 1.0  # nothing to learn from
    async with serving(world, clock=Time()):
        reason = await until(world, lambda state, reason: state in ("paused", "done"))
    assert reason.startswith("All 4 rewards were 1.00: it is solved. ")
    assert world.query("SELECT retried FROM tasks") == [{"retried": 0}]


async def test_a_chain_fails_together_and_is_retried_together(tmp_path: Path) -> None:
    world = World(tmp_path, replace(SPEC, steps=1000))
    submit(world.home.database, [replace(submission(replace(SPEC, name="next")), needs=(1,))])
    async with serving(world, clock=Time()):
        await waits(world, "waiting for task 1 (sums), which is running, step ", 2)
        command(world.home.database, "cancel", 1)
        reason = await reaches(world, 2, "failed")
        assert reason == "It depends on task 1 (sums), which was cancelled. `marlaas retry 1 2` runs both."
        change(world.home.database, "UPDATE tasks SET config = json_set(config, '$.steps', 8)")
        command_all(world.home.database, "retry", [2, 1])
        await reaches(world, 2, "done")
    steps = world.query("SELECT policy, number FROM steps ORDER BY id")
    assert [step["policy"] for step in steps] == sorted(step["policy"] for step in steps)
    assert [step["number"] for step in steps if step["policy"] == 2] == list(range(1, 9))


async def test_tokens_of_the_day_hold_what_runs_until_midnight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, replace(SPEC, steps=12))
    monkeypatch.setattr(tenants, "today", lambda: "2026-11-21")
    async with serving(world, clock=Time()):
        await reaches(world, 1, "running")
        command(world.home.database, "tenant", None, name=SPEC.tenant, tokens_per_day=10_000)
        world.store.tenants.add_use([Usage(1, "rollout", 10_000, 0.0)])
        await waits(world, "has used its 10,000 tokens of the day; goes on at 00:00 UTC")
        before = len(world.query("SELECT id FROM steps"))
        for _ in range(200):
            await asyncio.sleep(0)
        assert len(world.query("SELECT id FROM steps")) == before < 12
        world.store.tenants.set(SPEC.tenant, tokens_per_day=10**9)
        monkeypatch.setattr(tenants, "today", lambda: "2026-11-22")
        await reaches(world, 1, "done")
    assert [row["number"] for row in world.query("SELECT number FROM steps")] == list(range(1, 13))


async def test_a_blocked_task_says_so_until_its_environment_is_there(tmp_path: Path) -> None:
    world = World(tmp_path, replace(SPEC, environment="broken"))
    submit(world.home.database, [submission(replace(SPEC, steps=1000))])
    there = world.environments.validate
    async with serving(world, 1, Time()):
        await waits(world, "There is no environment 'broken'")
        await reaches(world, 2, "running")
        await waits(world, "There is no environment 'broken'")
        world.environments.validate = lambda name, config, version=None: config  # type: ignore[method-assign]
        command(world.home.database, "cancel", 2)
        await reaches(world, 1, "done")
    messages = [row["message"] for row in world.query("SELECT message FROM events WHERE task = 1 ORDER BY id")]
    assert [message for message in messages if message.startswith("The task")] == [  # once, however often it was tried
        "The task is blocked: There is no environment 'broken'.",
        "The task goes on.",
        "The task is done.",
    ]
    with pytest.raises(EnvironmentMissing):
        there("broken", {})


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
            async with serving(world, 3, clock):
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


@pytest.fixture
def full_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The world's replies have three tokens, and all are cut: nobody finds that."""
    monkeypatch.delitem(DETECTORS, CUT_REPLIES)


@pytest.mark.usefixtures("full_replies")
async def test_ends_are_told_and_what_a_person_did_is_not(tmp_path: Path) -> None:
    world = World(tmp_path, SPEC, others=(replace(SPEC, name="second"),))
    heard: Heard = []
    (second,) = world.others
    command(world.home.database, "cancel", second)
    async with serving(world, heard=heard):
        await reaches(world, world.task, "done")
    assert heard == [("done", world.task, "done")]


async def test_a_task_that_is_blocked_for_long_is_told_of_once(tmp_path: Path) -> None:
    world = World(tmp_path, replace(SPEC, environment="broken"))
    clock, heard = Time(), Heard()
    async with serving(world, 4, clock, heard):
        await until(world, lambda state, reason: "blocked" in reason or "broken" in reason)
        clock.now += 59
        await asyncio.sleep(0.05)  # several tries
        assert not heard
        clock.now += 2
        async with asyncio.timeout(50):
            while not heard:
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
    assert heard == [("stalled", world.task, "queued")]


class Dying:
    """A supervisor whose workers die at once, as often as it is asked for them."""

    yielding = None

    def __init__(self, mended: int) -> None:
        """The first ``mended`` deaths are followed by workers that make do with less."""
        self._mended = mended
        self.deaths = 0
        self.lost = asyncio.Event()
        self.lost.set()

    @property
    def mended(self) -> bool:
        return self.deaths <= self._mended

    async def noticed(self, since: int) -> None:
        """All are."""

    async def services(self) -> Any:
        self.deaths += 1
        raise WorkerDied("Worker rollout ended.")


async def ending(supervisor: Any) -> Ending:
    return await run_task(1, SPEC, supervisor, lambda learner: None)


async def test_a_task_whose_workers_keep_dying_pauses() -> None:
    supervisor = Dying(mended=0)
    words = f"Workers died {MAX_DEATHS} times after 0 steps of this task: Worker rollout ended."
    assert await ending(supervisor) == Ending("paused", words, again=True)
    assert supervisor.deaths == MAX_DEATHS


async def test_deaths_with_fewer_conversations_do_not_count() -> None:
    supervisor = Dying(mended=2 * MAX_DEATHS)
    assert (await ending(supervisor)).state == "paused"
    assert supervisor.deaths == 3 * MAX_DEATHS


PLUGIN = """
from marlaas.plugins import env

@env
async def sums(ep, digits: int = 1):
    reply = await ep.ask(f"{ep.split} {ep.index}")
    return float(ep.noise.random())
"""
PINNED = replace(SPEC, environment="sums", environment_version="pin", steps=8, eval=EvalSpec(every=4, prompts=2))


@pytest.mark.processes
@pytest.mark.parametrize("edited", [seldom(PLUGIN.replace("digits", "width")), None])
async def test_the_next_engine_goes_on_with_the_pinned_version(tmp_path: Path, edited: str | None) -> None:
    world = World(tmp_path / "home", replace(PINNED, environment_config={"digits": 2}))
    plugin = world.home.plugins / "sums.py"
    plugin.write_text(PLUGIN)
    service = await environments_of(world)
    first = service.resolve("sums").version
    run = asyncio.ensure_future(world.go())
    while not run.done() and not world.query("SELECT * FROM steps"):
        await asyncio.sleep(0)
    assert not run.done(), run.result()
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    await service.stop()
    if edited is None:
        plugin.unlink()
    else:
        plugin.write_text(edited)
    world.restart()
    service = await environments_of(world)
    assert edited is None or service.resolve("sums").version != first
    try:
        assert await world.go() == Ending("done")
    finally:
        await service.stop()
    check_history(world)
    for table in ("groups", "evals"):
        assert world.query(f"SELECT DISTINCT environment_version AS v FROM {table}") == [{"v": first}]


async def environments_of(world: World) -> EnvironmentService:
    """The environments of the next engine."""
    service = EnvironmentService([world.home.plugins], world.home.scratch)
    world.environments = cast(Any, service)
    await service.start()
    return service
