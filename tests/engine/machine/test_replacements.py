"""Real workers are killed: each is replaced alone, and nobody else begins again. The tests share one supervisor."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from marlaas.engine.devices.machine import Place, Placement, SamplerAssignment, TrainerAssignment
from marlaas.engine.errors import StateLost, WorkerDied
from marlaas.engine.fairness.line import Ledger, Payer
from marlaas.engine.home.settings import RolloutSettings, Settings, TrainingSettings
from marlaas.engine.machine import supervisor as module
from marlaas.engine.machine.plan import PlacementPlan
from marlaas.engine.machine.services import Services
from marlaas.engine.machine.supervisor import TRIES, WorkerProcesses, replaceable
from marlaas.engine.machine.trainers import TaskTrainer
from marlaas.engine.rollout.sampler_client import SamplerClient
from marlaas.engine.rollout.slots import Replicas
from marlaas.engine.trainer.protocol import PolicyConfig
from tests.engine.rollout.contract.asking import request
from tests.engine.rollout.random_base import write_adapter
from tests.engine.trainer.samples import group

from .supervised import BASE, Supervised, plan_on

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180), pytest.mark.asyncio(loop_scope="module")]
TWO = Settings(rollout=RolloutSettings(sampler="torch", sequences=8, context=64), training=TrainingSettings(trainers=2))
BOTH = replace(TWO, rollout=RolloutSettings(samplers=("torch", "llama.cpp"), sequences=8, context=64))
CONFIG = PolicyConfig(rank=4, alpha=8.0, learning_rate=1e-2, denominator=40.0)
STEPS = 3
TRAINERS = ("training", "training-2")
FIRST, SECOND = (SamplerAssignment(name, "torch", Place((0,))) for name in ("rollout", "rollout-2"))
ASSIGNED = tuple(TrainerAssignment(name, Place((1,))) for name in TRAINERS)
APART = Placement((FIRST, SECOND), ASSIGNED[0], more=ASSIGNED[1:])
LONE = Placement((FIRST,), ASSIGNED[0])

# who dies, of which placement, which trainers are left in the plan, and whether the others go on
DEATHS = [
    ("one of two samplers", {"rollout-2"}, APART, TRAINERS, True),
    ("the only sampler", {"rollout"}, LONE, TRAINERS[:1], True),
    ("all samplers", {"rollout", "rollout-2"}, APART, TRAINERS, True),
    ("one of two trainers", {"training-2"}, APART, TRAINERS, True),
    ("the last of two trainers", {"training"}, APART, TRAINERS[:1], False),
    ("a sampler and a trainer", {"rollout", "training"}, APART, TRAINERS, True),
    ("the only trainer", {"training"}, LONE, TRAINERS[:1], False),
    ("all trainers", {"training", "training-2"}, APART, TRAINERS, False),
]


@pytest.mark.parametrize(
    ("deaths", "placement", "trainers", "go_on"), [pytest.param(*row[1:], id=row[0]) for row in DEATHS]
)
async def test_who_may_be_replaced_alone(
    deaths: set[str], placement: Placement, trainers: tuple[str, ...], go_on: bool
) -> None:
    assert replaceable(deaths, PlacementPlan(placement, ()), list(trainers)) is go_on


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Supervised]:
    """A sampler and two trainers."""
    supervisor = Supervised(tmp_path_factory.mktemp("supervised"), BOTH, plan_on(TWO, 0, 1))
    async with supervisor.running():
        yield supervisor
    await supervisor.close()


@pytest_asyncio.fixture(loop_scope="module")
async def supervisor(started: Supervised) -> Supervised:
    """All of its workers live, whatever the test before has killed."""
    while len((await started.services()).trainers.trainers) < len(TRAINERS):
        await asyncio.sleep(0.02)
    started.told.clear()
    return started


def changed(supervisor: Supervised, before: dict[str, int]) -> list[str]:
    """Workers that are other processes than before."""
    after = dict(supervisor.processes())
    return [name for name in before if before[name] != after[name]]


def homes(services: Services) -> dict[str, str]:
    return {policy: home.trainer.name for policy, home in services.trainers._homes.items()}


async def stay(_: int) -> None:
    """Nothing moves."""


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


@pytest.mark.torch
async def test_a_policy_has_the_same_bits_wherever_it_trains(supervisor: Supervised, tmp_path: Path) -> None:
    """On the one, on the other, and on both in turn, from group to group of a step."""
    services = await supervisor.services()
    trainers = services.trainers
    assert tuple(trainers.trainers) == TRAINERS
    assert {*TRAINERS, "rollout"} == set(supervisor.loads()) == set(supervisor.devices)
    task = TaskTrainer(trainers, Payer("ann", 1), alone=True)
    first = await train(task, "a", tmp_path, lambda _: move(services, "a", TRAINERS[0]))
    second = await train(task, "b", tmp_path, lambda _: move(services, "b", TRAINERS[1]))
    before = trainers.moved
    third = await train(task, "c", tmp_path, lambda number: move(services, "c", TRAINERS[number % 2]))
    assert first == second == third
    assert trainers.moved >= before + 2 * STEPS - 1
    assert homes(services) == {"a": TRAINERS[0], "b": TRAINERS[1], "c": TRAINERS[1]}
    for policy in "abc":
        await task.close(policy)


@pytest.mark.torch
async def test_a_killed_sampler_is_replaced_alone(supervisor: Supervised, tmp_path: Path) -> None:
    """The trainer keeps what it has added up, and steps with it as if nobody had died."""
    adapter, deaths = write_adapter(tmp_path / "adapter", BASE, 0), supervisor.deaths
    services, lost, before = await supervisor.services(), supervisor.lost, dict(supervisor.processes())
    task = TaskTrainer(services.trainers, Payer("ann", 1), alone=True)
    for policy in "ab":
        await task.open(policy, CONFIG, str(tmp_path / f"{policy}-0"), False)
        await task.accumulate(policy, (group(0),))
    await task.accumulate("a", (group(1),))
    await task.step("a", str(tmp_path / "a-1"))
    old = services.endpoints["rollout"]
    await old.sampler.load("v1", str(adapter))
    turn = asyncio.ensure_future(old.sampler.generate(request("c", [1, 2, 3], max_tokens=4, version="v1")))
    supervisor.kill("rollout")
    with contextlib.suppress(WorkerDied):  # it may have been answered
        await turn
    await supervisor.noticed(0)
    assert not supervisor.ready and not lost.is_set() and old.lost
    assert supervisor.starting == {"rollout"}
    await task.accumulate("b", (group(1),))
    await task.step("b", str(tmp_path / "b-1"))
    assert (tmp_path / "a-1").read_bytes() == (tmp_path / "b-1").read_bytes()
    assert await supervisor.services() is services and supervisor.ready and not supervisor.starting
    new = services.endpoints["rollout"]
    assert new is not old and changed(supervisor, before) == ["rollout"]
    await new.sampler.load("v1", str(adapter))
    assert (await new.sampler.generate(request("c", [1, 2, 3], max_tokens=4, version="v1"))).tokens.size
    with pytest.raises(WorkerDied):
        await old.sampler.limits()
    assert not lost.is_set() and supervisor.deaths == deaths + 1
    (message,) = supervisor.told
    assert "Worker rollout ended by signal SIGKILL" in message
    assert message.endswith("A new one takes its place. All other workers go on.")
    for policy in "ab":
        await task.close(policy)


@pytest.mark.torch
async def test_a_killed_trainer_costs_its_own_policies_alone(supervisor: Supervised, tmp_path: Path) -> None:
    services, lost, before = await supervisor.services(), supervisor.lost, dict(supervisor.processes())
    task = TaskTrainer(services.trainers, Payer("ann", 1), alone=True)
    expected = await train(task, "a", tmp_path)
    for policy, name in (("b", "training"), ("c", "training-2")):
        await task.open(policy, CONFIG, str(tmp_path / f"{policy}-0"), False)
        await move(services, policy, name)
        await task.accumulate(policy, (group(10),))
    there = homes(services)
    assert there["b"] != there["c"]
    supervisor.kill(there["b"])
    with pytest.raises(StateLost):
        await task.accumulate("b", (group(11),))
    await task.accumulate("c", (group(11),))
    assert not lost.is_set()
    assert homes(services) == {name: where for name, where in there.items() if where != there["b"]}
    while len(services.trainers.trainers) < 2:
        await asyncio.sleep(0.02)
    assert await supervisor.services() is services and not lost.is_set()
    assert changed(supervisor, before) == [there["b"]]
    assert await train(task, "b", tmp_path) == expected, "at its successor, or at the other"
    (message,) = supervisor.told
    assert "A new one takes its place. All other workers go on." in message


async def test_it_goes_elsewhere_if_its_card_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other trainer does the work meanwhile, so that nothing else would end the tries."""

    async def refuse(processes: WorkerProcesses, spec: Any) -> None:
        raise OSError("another account holds the card")

    monkeypatch.setattr(module, "RETRY", 0.0)
    monkeypatch.setattr(WorkerProcesses, "start_again", refuse)
    supervisor = Supervised(tmp_path, TWO, plan_on(TWO, 0, 1))
    placement = supervisor.placement_plan.placement
    on_card = replace(placement, trainer=replace(placement.trainer, place=Place(gpus=("GPU-0",))))
    supervisor.placement_plan = replace(supervisor.placement_plan, placement=on_card)
    services: Any = SimpleNamespace(trainers=SimpleNamespace(trainers={"training-2": object()}))
    endpoints: Any = SimpleNamespace(by_name={}, alive=True)
    await asyncio.wait_for(supervisor._succeed("training", services, endpoints), 50)
    assert supervisor._restart == "moved" and supervisor.placement_plan.placement == placement
    supervisor.store.close()


@pytest.mark.torch
async def test_where_it_cannot_be_replaced_all_begin_again(
    supervisor: Supervised, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another plan, with a second sampler. A turn survives that one's death."""
    tried: list[str] = []

    async def refuse(processes: WorkerProcesses, spec: Any) -> None:
        tried.append(spec.name)
        raise OSError("no room for a process")

    services, lost, before = await supervisor.services(), supervisor.lost, dict(supervisor.processes())
    supervisor.again = plan_on(BOTH, 0, 1)
    monkeypatch.setattr(module, "RETRY", 0.01)
    with monkeypatch.context() as full:
        full.setattr(WorkerProcesses, "start_again", refuse)
        supervisor.kill("rollout")
        await lost.wait()
    again = await supervisor.services()
    assert again is not services and tried == ["rollout"] * TRIES
    assert {"rollout", *TRAINERS} <= set(changed(supervisor, before))
    assert "worker: Worker rollout cannot be started: no room for a process" in supervisor.told

    endpoints = again.endpoints
    assert [endpoint.kind for endpoint in endpoints.values()] == ["torch", "llama.cpp"]
    assert set(await supervisor.sampler_stats(5.0)) == set(endpoints) and {*endpoints, *TRAINERS} == set(
        supervisor.loads()
    )
    adapter = write_adapter(tmp_path / "adapter", BASE, 0)
    for endpoint in endpoints.values():
        await endpoint.sampler.load("v1", str(adapter))
    replicas = Replicas(tuple(endpoints.values()))
    clients = [SamplerClient(replicas, Ledger(), Payer("ann", 1), False) for _ in range(6)]
    asked = [replace(request(f"c{n}", [n + 2] * 8, max_tokens=24), version="v1") for n in range(6)]
    turns = [asyncio.ensure_future(client.generate(each)) for client, each in zip(clients, asked, strict=True)]
    await asyncio.sleep(0)
    supervisor.kill("rollout-2")
    assert all(result.tokens.dtype == np.int32 for result in await asyncio.gather(*turns))
    while endpoints["rollout-2"].lost:
        await asyncio.sleep(0.02)
    assert await supervisor.services() is again and supervisor.ready, "nobody else began again"
