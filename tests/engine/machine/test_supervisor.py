"""The supervisor with real workers: they move, share templates; and what they hold."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from marlaas.engine.devices.machine import Place, Placement
from marlaas.engine.errors import ClusterUnreachable, OutOfMemory
from marlaas.engine.home.settings import RolloutSettings, Settings
from marlaas.engine.machine import plan, supervisor as processes
from marlaas.engine.machine.plan import LLAMA, TORCH, TRAINER, WorkerSpec
from marlaas.engine.machine.services import ServicesFactory
from marlaas.engine.machine.supervisor import WorkerProcesses
from marlaas.engine.machine.workers.handle import LocalLauncher
from marlaas.engine.models.find import BaseModel
from marlaas.engine.samplers.protocol import Sampler, SampleRequest
from marlaas.engine.trainer.protocol import PolicyConfig, Trainer, TrainGroup, TrainSequence
from tests.engine.rollout.contract.asking import request
from tests.engine.rollout.random_base import write_adapter

from ..rollout.random_base import write_base
from .supervised import BASE, Supervised, plan_on
from .tight import ROOM

pytestmark = pytest.mark.processes
ONE = Settings(rollout=RolloutSettings(sampler="torch", sequences=8, context=64))
BOTH = Settings(rollout=RolloutSettings(samplers=("torch", "llama.cpp"), sequences=8, context=64))
CORES = (0,)


@pytest.fixture
async def supervisor(tmp_path: Path) -> AsyncIterator[Supervised]:
    """On the processor with one sampler."""
    supervisor = Supervised(tmp_path, BOTH, plan_on(ONE, *CORES))
    yield supervisor
    await supervisor.close()


async def test_they_move_only_when_the_plan_takes_other_cards(
    supervisor: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, unreachable = list[Placement](), list[str]()

    async def start(processes: WorkerProcesses, *_: object) -> None:
        started.append(supervisor.placement_plan.placement)
        if unreachable:
            raise ClusterUnreachable(unreachable.pop())

    async def opened(factory: ServicesFactory, *_: object) -> tuple[SimpleNamespace, SimpleNamespace]:
        trainers = SimpleNamespace(end=lambda: None)
        return SimpleNamespace(trainers=trainers), SimpleNamespace(alive=True, conversations={})

    monkeypatch.setattr(WorkerProcesses, "start", start)
    monkeypatch.setattr(ServicesFactory, "open", opened)
    one, both = supervisor.placement_plan.placement, plan_on(BOTH, *CORES)
    on_card = replace(one, trainer=replace(one.trainer, place=Place(gpus=("GPU-0",))))
    async with supervisor.running():
        lost = supervisor.lost
        supervisor.move(supervisor.placement_plan)
        assert not lost.is_set(), "they are there already"
        supervisor.move(both)
        await lost.wait()
        await supervisor.services()
        assert started == [one, both.placement] and supervisor.told == [f"placement: {both.words}"]
        assert not await supervisor.place_anew(), "the plan is another, and on no other cards"
        supervisor.placement_plan = replace(supervisor.placement_plan, placement=on_card)
        assert await supervisor.place_anew() and supervisor.placement_plan.placement.cards == frozenset()
        await supervisor.lost.wait()
        await supervisor.services()
        monkeypatch.setattr(processes, "RETRY", 0.0)
        unreachable.append("The node is gone.")
        supervisor.move(both)
        await supervisor.lost.wait()
        await supervisor.services()
        assert started[-2:] == [both.placement, one], "another plan follows one that cannot be started"


@pytest.mark.timeout(120)
@pytest.mark.slow
async def test_a_step_without_memory_halves_the_next_sampler(
    supervisor: Supervised, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = write_adapter(tmp_path / "adapter", BASE, 0)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    monkeypatch.setattr(plan, "TORCH", "tests.engine.machine.tight:TightSampler")
    many = replace(ONE, rollout=replace(ONE.rollout, sequences=2 * ROOM))
    supervisor.again = plan_on(many, *CORES)
    supervisor.place(supervisor.again)
    async with supervisor.running():
        services, lost = await supervisor.services(), supervisor.lost
        sampler = services.endpoints["rollout"].sampler
        await sampler.load("v0", str(adapter))
        asked = [request(f"c{n}", [n + 2] * 4, max_tokens=4) for n in range(8)]
        ends = await asyncio.gather(*map(sampler.generate, asked), return_exceptions=True)
        assert {type(end) for end in ends} == {OutOfMemory} and "Worker rollout ran out of memory: " in str(ends[0])
        await supervisor.noticed(0)
        assert supervisor.mended and not lost.is_set()
        (endpoint,) = (await supervisor.services()).endpoints.values()
        assert endpoint.slots.count == ROOM
        await endpoint.sampler.load("v0", str(adapter))
        assert (await endpoint.sampler.generate(asked[0])).tokens.size == 4
        words = f"The sampler rollout ran out of memory; it goes on with {ROOM} conversations instead of {2 * ROOM}."
        assert supervisor.told == [f"worker: {words} All other workers go on."]


DUMMY = "tests.engine.machine.workers.dummy:DummyWorker"


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WorkerProcesses:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    monkeypatch.setattr(plan, "FORKED", (DUMMY,))
    return WorkerProcesses(tmp_path, 0)


def parents(workers: WorkerProcesses) -> dict[str, str]:
    """The module that each worker's parent runs."""
    lines = {name: psutil.Process(handle.pid).parent() for name, handle in workers.handles.items()}
    return {name: parent.cmdline()[3] if parent else "" for name, parent in lines.items()}


@pytest.mark.skipif(sys.platform != "linux", reason="templates fork on Linux alone")
def test_torch_on_the_processor_is_forked_and_cards_are_not() -> None:
    sampler, trainer = WorkerSpec("rollout", TORCH, {}, (0,)), WorkerSpec("training", TRAINER, {}, (1,))
    assert all(spec.modules for spec in (sampler, trainer))
    assert not WorkerSpec("rollout", LLAMA, {}, (0,)).modules
    assert not WorkerSpec("training", TRAINER, {}, (1,), gpus=(0,)).modules


@pytest.mark.skipif(sys.platform != "linux", reason="templates fork on Linux alone")
async def test_those_with_equal_imports_and_cores_share_a_template(workers: WorkerProcesses) -> None:
    core = min(os.sched_getaffinity(0))
    cores: dict[str, tuple[int, ...]] = {"one": (core,), "two": (core,), "three": ()}
    specs = [WorkerSpec(name, DUMMY, {"greeting": name}, given) for name, given in cores.items()]
    await workers.start(specs, ())
    template = "marlaas.engine.machine.workers.template"
    assert {name for name, module in parents(workers).items() if module == template} == {"one", "two"}
    assert [await workers.handles[name].call("greet") for name in cores] == list(cores)
    forked = psutil.Process(workers.handles["one"].pid).parent()
    workers.forget("one")
    await workers.start_again(specs[0])
    assert parents(workers)["one"] == template
    await workers.stop()
    assert forked is not None and not psutil.pid_exists(forked.pid), "its memory is free, too"


@pytest.mark.skipif(sys.platform != "linux", reason="templates fork on Linux alone")
async def test_workers_start_without_a_template_that_cannot(
    workers: WorkerProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WorkerSpec, "modules", property(lambda spec: ("no_such_module",)))
    await workers.start([WorkerSpec(name, DUMMY, {}, ()) for name in ("one", "two")], ())
    assert set(parents(workers)) == {"one", "two"}
    assert (workers._logs / f"{processes.TEMPLATE}.log").read_text().count("no_such_module")
    await workers.stop()


def held(pid: int) -> int:
    """Bytes of a process in memory, pages of mapped files included; those that it shares count in part."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


@pytest.fixture
def smol(tmp_path: Path) -> BaseModel:
    """A random base of the sizes of SmolLM2-135M."""
    heads = {"num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64}
    sizes = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "vocab_size": 49_152}
    return write_base(tmp_path / "base", 0, model_type="llama", max_position_embeddings=8192, **heads, **sizes)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="the kernel's own count")
@pytest.mark.parametrize(("length", "limit"), [(170, 2.0), (550, 3.5)])
async def test_a_default_task_on_a_real_base(smol: BaseModel, tmp_path: Path, length: int, limit: float) -> None:
    """96 episodes in flight, each as long as replies of 128 or of 512 tokens can make it: the most that is taken."""
    launcher, common = LocalLauncher(), {"base": str(smol.path), "threads": 1}
    sampling = {"cache": str(tmp_path / "cache"), "sequences": 128, "context": 2048, "exact": True, "weights": "f16"}
    rollout = await launcher.start("rollout", LLAMA, common | sampling, log_path=tmp_path / "log")
    own = {"fingerprint": smol.fingerprint, "scratch": str(tmp_path / "scratch")}
    training = await launcher.start("training", TRAINER, common | own, log_path=tmp_path / "log")
    sampler, trainer = rollout.proxy(Sampler), training.proxy(Trainer)
    await trainer.open("p", PolicyConfig(), str(tmp_path / "0"), False)
    await sampler.load("v0", str(tmp_path / "0"))

    async def play(number: int) -> None:
        prompt = np.arange(length - 4, dtype=np.int32) + 50 * (number // 16)
        await sampler.generate(SampleRequest(f"{number}", "v0", prompt, 4, 1.0, (), number))
        await sampler.release(f"{number}")

    await asyncio.gather(*map(play, range(96)))
    mask = (np.arange(length) >= 42).astype(np.uint8)
    logprobs = np.float32(-10) * mask
    for group in range(1):
        sequences = tuple(
            TrainSequence(np.roll(np.arange(length, dtype=np.int32), n + 1), mask, logprobs, n - 3.5) for n in range(8)
        )
        await trainer.accumulate("p", (TrainGroup(group, sequences),))
    await trainer.step("p", str(tmp_path / "1"))
    sizes = {handle.name: held(handle.pid) for handle in (rollout, training)}
    await asyncio.gather(rollout.stop(), training.stop())
    print(sizes)
    assert sum(sizes.values()) < limit * 1e9, sizes
