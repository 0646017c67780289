"""Two training workers as real processes: same bits wherever a policy trains, and one's death costs its own alone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from marlaas.engine.errors import StateLost, WorkerDied
from marlaas.engine.fairness.line import Ledger, Payer
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import RolloutSettings, Settings, TrainingSettings
from marlaas.engine.machine.plan import on_processor
from marlaas.engine.machine.services import Services
from marlaas.engine.machine.supervisor import WorkerSupervisor
from marlaas.engine.machine.trainers import TaskTrainer
from marlaas.engine.models.find import load_base
from marlaas.engine.store.store import Store
from marlaas.engine.trainer.protocol import PolicyConfig
from tests.engine.trainer.samples import group

pytestmark = [pytest.mark.processes, pytest.mark.torch, pytest.mark.timeout(180)]

BASE = load_base("tiny")
TWO = Settings(rollout=RolloutSettings(sampler="torch", sequences=8, context=64), training=TrainingSettings(trainers=2))
CONFIG = PolicyConfig(rank=4, alpha=8.0, learning_rate=1e-2, denominator=40.0)
STEPS = 3


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
async def supervisor(tmp_path: Path, told: list[str]) -> AsyncIterator[WorkerSupervisor]:
    home, plan = Home(tmp_path).create(), on_processor(BASE, TWO, 8 << 30, (0, 1))
    store, environments = Store(home.database, "tiny"), SimpleNamespace(processes=lambda: [])
    nobody: Any = environments
    supervisor = WorkerSupervisor(
        home, TWO, BASE, plan, store, nobody, Ledger(), str,
        lambda kind, message, level: told.append(f"{kind}: {message}"), lambda failed, ours: plan,
    )  # fmt: skip
    await supervisor.start()
    running = asyncio.ensure_future(supervisor.run())
    yield supervisor
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    await supervisor.stop()
    store.close()


async def stay(_: int) -> None:
    """Nothing moves."""


def homes(services: Services) -> dict[str, str]:
    return {policy: home.trainer.name for policy, home in services.trainers._homes.items()}


async def train(task: TaskTrainer, policy: str, folder: Path, move: Callable[[int], Awaitable[None]] = stay) -> bytes:
    """Its last state file; ``move`` is called with a number before every group."""
    await task.open(policy, CONFIG, str(folder / f"{policy}-0"), False)
    for step in range(1, STEPS + 1):
        for number in range(2):
            await move(2 * step + number)
            await task.accumulate(policy, (group(10 * step + number),))
        await task.step(policy, str(folder / f"{policy}-{step}"))
    return (folder / f"{policy}-{STEPS}").read_bytes()


async def move(services: Services, policy: str, there: str) -> None:
    home = services.trainers._homes[policy]
    if home.trainer.name != there:
        await services.trainers._move(home, policy, services.trainers.trainers[there])


async def test_a_policy_has_the_same_bits_wherever_it_trains(supervisor: WorkerSupervisor, tmp_path: Path) -> None:
    """On the one, on the other, and on both in turn, from group to group of a step."""
    services = await supervisor.services()
    trainers = services.trainers
    names = ["training", "training-2"]
    assert list(trainers.trainers) == names
    assert {*names, "rollout"} == set(supervisor.loads()) == set(supervisor.devices)
    task = TaskTrainer(trainers, Payer("ann", 1), alone=True)
    first = await train(task, "a", tmp_path, lambda _: move(services, "a", names[0]))
    second = await train(task, "b", tmp_path, lambda _: move(services, "b", names[1]))
    before = trainers.moved
    third = await train(task, "c", tmp_path, lambda number: move(services, "c", names[number % 2]))
    assert first == second == third
    assert trainers.moved >= before + 2 * STEPS - 1 and homes(services) == {"a": names[0], "b": names[1], "c": names[1]}


async def test_a_killed_trainer_costs_its_own_policies_alone(
    supervisor: WorkerSupervisor, tmp_path: Path, told: list[str]
) -> None:
    services, lost = await supervisor.services(), supervisor.lost
    before = dict(supervisor.processes())
    task = TaskTrainer(services.trainers, Payer("ann", 1), alone=True)
    expected = await train(task, "a", tmp_path)
    for policy, name in (("b", "training"), ("c", "training-2")):
        await task.open(policy, CONFIG, str(tmp_path / f"{policy}-0"), False)
        await move(services, policy, name)
        await task.accumulate(policy, (group(10),))
    there = homes(services)
    assert there["b"] != there["c"]
    os.kill(before[there["b"]], signal.SIGKILL)
    with pytest.raises(StateLost):
        await task.accumulate("b", (group(11),))
    await task.accumulate("c", (group(11),))
    assert not lost.is_set() and homes(services) == {
        name: where for name, where in there.items() if where != there["b"]
    }
    while len(services.trainers.trainers) < 2:
        await asyncio.sleep(0.05)
    assert await supervisor.services() is services and not lost.is_set()
    after = dict(supervisor.processes())
    assert [name for name in before if before[name] != after[name]] == [there["b"]]
    assert await train(task, "b", tmp_path) == expected, "at its successor, or at the other"
    assert len(told) == 1 and "A new one takes its place. All other workers go on." in told[0]


async def test_when_all_trainers_die_all_workers_begin_anew(supervisor: WorkerSupervisor, tmp_path: Path) -> None:
    services, lost = await supervisor.services(), supervisor.lost
    before = dict(supervisor.processes())
    task = TaskTrainer(services.trainers, Payer("ann", 1), alone=True)
    for policy in "ab":
        await task.open(policy, CONFIG, str(tmp_path / policy), False)
    for name in ("training", "training-2"):
        os.kill(before[name], signal.SIGKILL)
    await lost.wait()
    anew = await supervisor.services()
    assert anew is not services and list(anew.trainers.trainers) == ["training", "training-2"]
    assert dict(supervisor.processes())["rollout"] != before["rollout"]
    with contextlib.suppress(WorkerDied):
        await asyncio.wait_for(task.accumulate("a", (group(1),)), 50)


def test_a_home_says_how_many_it_has(tmp_path: Path) -> None:
    plan = on_processor(BASE, replace(TWO, training=TrainingSettings(trainers=3)), 8 << 30, (0, 1))
    assert [each.name for each in plan.placement.trainers] == ["training", "training-2", "training-3"]
    assert "at the same time, on 1 core that they share, as `trainers = 3`" in plan.words
    plan = on_processor(BASE, replace(TWO, training=TrainingSettings(trainers=3)), 8 << 30, tuple(range(6)))
    assert "3 trainers train different policies at the same time, with 1 core each, as" in plan.words
