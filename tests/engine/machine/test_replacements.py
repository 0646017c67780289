"""Workers that die alone: real ones are killed, and nobody else begins anew."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from marlaas.engine.devices.machine import Place, Placement, SamplerAssignment, TrainerAssignment
from marlaas.engine.errors import WorkerDied
from marlaas.engine.fairness.line import Ledger, Payer
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import RolloutSettings, Settings
from marlaas.engine.machine import supervisor as replacements
from marlaas.engine.machine.plan import PlacementPlan, on_processor
from marlaas.engine.machine.supervisor import TRIES, WorkerProcesses, WorkerSupervisor, replaceable
from marlaas.engine.machine.trainers import TaskTrainer
from marlaas.engine.models.find import load_base
from marlaas.engine.rollout.sampler_client import SamplerClient
from marlaas.engine.rollout.slots import Replicas
from marlaas.engine.store.store import Store
from marlaas.engine.trainer.protocol import PolicyConfig
from tests.engine.rollout.contract.asking import request
from tests.engine.rollout.random_base import write_adapter
from tests.engine.trainer.samples import group

BASE = load_base("tiny")
ONE = Settings(rollout=RolloutSettings(sampler="torch", sequences=8, context=64))
TWO = Settings(rollout=RolloutSettings(samplers=("torch", "llama.cpp"), sequences=8, context=64))
CONFIG = PolicyConfig(rank=4, alpha=8.0, learning_rate=1e-2, denominator=40.0)

FIRST, SECOND = (SamplerAssignment(name, "torch", Place((0,))) for name in ("rollout", "rollout-2"))
TRAINERS = tuple(TrainerAssignment(name, Place((1,))) for name in ("training", "training-2"))
APART = Placement((FIRST, SECOND), TRAINERS[0], more=TRAINERS[1:])
LONE = Placement((FIRST,), TRAINERS[0])
SHARED = Placement((replace(FIRST, sharing="base"), SECOND), replace(TRAINERS[0], sharing="base"))

# who dies, of which placement, and whether the others go on
DEATHS = [
    ("one of two samplers", {"rollout-2"}, APART, True),
    ("the only sampler", {"rollout"}, LONE, True),
    ("all samplers", {"rollout", "rollout-2"}, APART, True),
    ("one of two trainers", {"training-2"}, APART, True),
    ("a sampler and a trainer", {"rollout", "training"}, APART, True),
    ("the only trainer", {"training"}, LONE, False),
    ("all trainers", {"training", "training-2"}, APART, False),
    ("a sampler with the base of the trainer", {"rollout"}, SHARED, False),
    ("a sampler beside these", {"rollout-2"}, SHARED, True),
]


@pytest.mark.parametrize(("deaths", "placement", "go_on"), [pytest.param(*row[1:], id=row[0]) for row in DEATHS])
def test_who_may_be_replaced_alone(deaths: set[str], placement: Placement, go_on: bool) -> None:
    plan = PlacementPlan(placement, ())
    assert replaceable(deaths, plan, [own.name for own in placement.trainers]) is go_on


def test_the_last_of_several_trainers_is_not_replaced_alone() -> None:
    assert not replaceable({"training"}, PlacementPlan(APART, ()), ["training"])


@asynccontextmanager
async def supervised(root: Path, settings: Settings, told: list[str]) -> AsyncIterator[WorkerSupervisor]:
    """Workers that are kept alive."""
    home, plan = Home(root).create(), on_processor(BASE, settings, 8 << 30, (0, 1))
    nobody: Any = SimpleNamespace(processes=lambda: [])
    store = Store(home.database, "tiny")
    supervisor = WorkerSupervisor(
        home, settings, BASE, plan, store, nobody, Ledger(), str,
        lambda kind, message, level: told.append(f"{kind}: {message}"), lambda failed, ours: plan,
    )  # fmt: skip
    await supervisor.start()
    running = asyncio.ensure_future(supervisor.run())
    await asyncio.sleep(0)
    try:
        yield supervisor
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await supervisor.stop()
        store.close()


def kill(supervisor: WorkerSupervisor, name: str) -> None:
    os.kill(dict(supervisor.processes())[name], signal.SIGKILL)


@pytest.mark.processes
@pytest.mark.torch
@pytest.mark.timeout(180)
async def test_a_killed_sampler_is_replaced_alone(tmp_path: Path) -> None:
    """The trainer keeps what it has added up, and steps with it as if nobody had died."""
    told: list[str] = []
    adapter = write_adapter(tmp_path / "adapter", BASE, 0)
    async with supervised(tmp_path / "home", ONE, told) as supervisor:
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
        kill(supervisor, "rollout")
        with contextlib.suppress(WorkerDied):  # it may have been answered
            await turn
        await supervisor.noticed(0)
        assert not supervisor.ready and not lost.is_set() and old.lost
        assert supervisor.starting == {"rollout"}
        await task.accumulate("b", (group(1),))
        await task.step("b", str(tmp_path / "b-1"))
        assert (tmp_path / "a-1").read_bytes() == (tmp_path / "b-1").read_bytes()
        assert await supervisor.services() is services and supervisor.ready and not supervisor.starting
        new, after = services.endpoints["rollout"], dict(supervisor.processes())
        assert new is not old and [name for name in before if before[name] != after[name]] == ["rollout"]
        await new.sampler.load("v1", str(adapter))
        assert (await new.sampler.generate(request("c", [1, 2, 3], max_tokens=4, version="v1"))).tokens.size
        with pytest.raises(WorkerDied):
            await old.sampler.limits()
        assert not lost.is_set() and supervisor.deaths == 1
        assert len(told) == 1 and "Worker rollout ended by signal SIGKILL" in told[0]
        assert told[0].endswith("A new one takes its place. All other workers go on.")


@pytest.mark.processes
@pytest.mark.torch
@pytest.mark.timeout(180)
async def test_turns_go_on_at_the_other_sampler(tmp_path: Path) -> None:
    told: list[str] = []
    adapter = write_adapter(tmp_path / "adapter", BASE, 0)
    async with supervised(tmp_path / "home", TWO, told) as supervisor:
        services, before = await supervisor.services(), dict(supervisor.processes())
        for endpoint in services.endpoints.values():
            await endpoint.sampler.load("v1", str(adapter))
        replicas = Replicas(tuple(services.endpoints.values()))
        clients = [SamplerClient(replicas, Ledger(), Payer("ann", 1), False) for _ in range(6)]
        asked = [replace(request(f"c{n}", [n + 2] * 8, max_tokens=24), version="v1") for n in range(6)]
        turns = [asyncio.ensure_future(one.generate(each)) for one, each in zip(clients, asked, strict=True)]
        await asyncio.sleep(0)
        kill(supervisor, "rollout-2")
        assert all(result.tokens.dtype == np.int32 for result in await asyncio.gather(*turns))
        await supervisor.noticed(0)
        assert await supervisor.services() is services and supervisor.ready, "nobody waits"
        while services.endpoints["rollout-2"].lost:
            await asyncio.sleep(0.05)
        after = dict(supervisor.processes())
        assert [name for name in before if before[name] != after[name]] == ["rollout-2"]
        assert set(await supervisor.sampler_stats(5.0)) == {"rollout", "rollout-2"}


async def test_nobody_begins_anew_if_another_returns_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other trainer returns while the machine is looked at for another placement."""
    home, plan, told = Home(tmp_path).create(), on_processor(BASE, ONE, 8 << 30, (0, 1)), list[str]()
    nobody: Any = SimpleNamespace(processes=lambda: [])
    with contextlib.closing(Store(home.database, "tiny")) as store:
        supervisor = WorkerSupervisor(
            home, ONE, BASE, plan, store, nobody, Ledger(), str,
            lambda kind, message, level: told.append(message), lambda failed, ours: plan,
        )  # fmt: skip
        trainers: dict[str, object] = {}
        services: Any = SimpleNamespace(trainers=SimpleNamespace(trainers=trainers))
        endpoints: Any = SimpleNamespace(by_name={}, alive=True)

        async def refuse(processes: WorkerProcesses, spec: Any) -> None:
            raise OSError("no room for a process")

        async def slow() -> bool:
            tries.append(1)
            if len(tries) == TRIES:
                trainers["training-2"] = object()
            return False

        tries: list[int] = []
        monkeypatch.setattr(replacements, "RETRY", 0.0)
        monkeypatch.setattr(WorkerProcesses, "start_again", refuse)
        monkeypatch.setattr(supervisor, "place_anew", slow)
        start = asyncio.ensure_future(supervisor._succeed("training", services, endpoints))
        while len(tries) <= TRIES and not start.done():
            await asyncio.sleep(0)
        assert not start.done() and not supervisor._restart
        start.cancel()


@pytest.mark.processes
@pytest.mark.torch
@pytest.mark.timeout(180)
async def test_where_it_cannot_be_replaced_all_begin_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    tried: list[str] = []

    async def refuse(processes: WorkerProcesses, spec: Any) -> None:
        tried.append(spec.name)
        raise OSError("no room for a process")

    monkeypatch.setattr(replacements, "RETRY", 0.01)
    monkeypatch.setattr(WorkerProcesses, "start_again", refuse)
    async with supervised(tmp_path / "home", ONE, told) as supervisor:
        services, lost, before = await supervisor.services(), supervisor.lost, dict(supervisor.processes())
        kill(supervisor, "rollout")
        await lost.wait()
        assert await supervisor.services() is not services and tried == ["rollout"] * TRIES
        after = dict(supervisor.processes())
        assert before["training"] != after["training"]
        assert "worker: Worker rollout cannot be started: no room for a process" in told
