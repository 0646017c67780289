"""One process with a real vLLM and the trainer: what each computes is what it computes alone."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Protocol

import numpy as np
import pytest

from marlaas.engine.adapters.statefile import read_state
from marlaas.engine.errors import WorkerDied
from marlaas.engine.machine.workers.handle import LocalLauncher, WorkerHandle
from marlaas.engine.models.find import BaseModel
from marlaas.engine.samplers.protocol import Sampler, SampleRequest, SampleResult
from marlaas.engine.trainer.protocol import PolicyConfig, StepResult, Trainer, TrainGroup, TrainSequence
from marlaas.engine.trainer.torch_trainer import TorchTrainer

from ...rollout.contract.asking import alike, request
from ...rollout.random_base import write_base

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.processes,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("default"),
]
FACTORY = "tests.engine.machine.colocated.looking:LookingWorker"
CONFIG = PolicyConfig(rank=4, alpha=8.0, learning_rate=1e-2, denominator=40.0)
TOLERANCE = 1e-4
"""Between log-probabilities of vLLM and torch, in float32."""


class Looking(Protocol):
    async def matrices(self) -> tuple[int, int]: ...


class Worker:
    """A running one."""

    def __init__(self, handle: WorkerHandle) -> None:
        self.handle = handle
        self.sampler: Sampler = handle.proxy(Sampler, posted=("release",), part="sampler")
        self.trainer: Trainer = handle.proxy(Trainer, part="trainer")
        self.looking: Looking = handle.proxy(Looking)


Spawn = Callable[[], Awaitable[Worker]]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> BaseModel:
    return write_base(tmp_path_factory.mktemp("base") / "base", head_dim=32)


@pytest.fixture
async def spawn(base: BaseModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Spawn]:
    root = str(Path(__file__).parents[4])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH")))))
    workers: list[Worker] = []

    async def start() -> Worker:
        common = {"base": str(base.path), "scratch": str(tmp_path / "scratch")}
        sampler = {"sequences": 16, "context": 512, "largest_rank": 8, "slots": 2}
        trainer = {"fingerprint": base.fingerprint, "sync": False}
        kwargs = {"sampler": common | sampler, "trainer": common | trainer}
        log = tmp_path / "shared.log"
        workers.append(Worker(await LocalLauncher().start("rollout", FACTORY, kwargs, log_path=log)))
        return workers[-1]

    yield start
    for worker in workers:
        await worker.handle.stop()


def group(asked: SampleRequest, results: list[SampleResult]) -> TrainGroup:
    """Answers to one prompt, every second one good."""
    prompt = len(asked.tokens)
    sequences = []
    for place, result in enumerate(results):
        tokens = np.concatenate([asked.tokens, result.tokens])
        mask = np.array([0] * prompt + [1] * len(result.tokens), np.uint8)
        logprobs = np.concatenate([np.zeros(prompt, np.float32), result.logprobs])
        sequences.append(TrainSequence(tokens, mask, logprobs, 0.5 if place % 2 else -0.5))
    return TrainGroup(1, tuple(sequences))


async def rehearse(worker: Worker, folder: Path, steps: int = 2) -> tuple[list[StepResult], TrainGroup]:
    """Sample, train, publish, for some steps; returns them and the last group."""
    done = [await worker.trainer.open("a", CONFIG, str(folder / "0"), False)]
    for step in range(steps):
        assert await worker.sampler.load(f"v{step}", done[-1].path) == done[-1].checksum
        asked = [request(f"{step}-{n}", version=f"v{step}", seed=n, max_tokens=40) for n in range(6)]
        results = await asyncio.gather(*map(worker.sampler.generate, asked))
        last = group(asked[0], list(results))
        stats = await worker.trainer.accumulate("a", (last,))
        assert stats.gap_max < TOLERANCE  # what vLLM said of its tokens, the trainer says too
        done.append(await worker.trainer.step("a", str(folder / f"{step + 1}")))
    return done, last


async def test_the_trainer_computes_the_same_in_vllms_memory(spawn: Spawn, base: BaseModel, tmp_path: Path) -> None:
    worker = await spawn()
    done, last = await rehearse(worker, tmp_path, steps=1)
    size, shared = await worker.looking.matrices()
    assert shared > 0.98 * size > 0.9 * base.weight_files[0].stat().st_size  # all but norms of heads, which are spread
    alone = TorchTrainer(str(base.path), base.fingerprint, sync=False)
    await alone.open("a", CONFIG, str(tmp_path / "0"), resume=True)
    tokens = last.sequences[0].tokens
    await worker.sampler.load("v1", done[-1].path)
    await alone.accumulate("a", (last,))
    own = await alone.step("a", str(tmp_path / "own"))
    one, other = (read_state(Path(result.path)).adapter for result in (done[-1], own))
    assert all(np.allclose(one[name], other[name], atol=1e-6) for name in one)
    expected = await alone.score("a", tokens, 1, 1.0)
    np.testing.assert_allclose(await worker.trainer.score("a", tokens, 1, 1.0), expected, atol=1e-5)
    np.testing.assert_allclose(await worker.sampler.score("v1", tokens, 1, 1.0), expected, atol=TOLERANCE)
    assert np.abs(await worker.sampler.score("v0", tokens, 1, 1.0) - expected).max() > TOLERANCE
    alone.shutdown()


async def test_sampling_goes_on_while_others_train(spawn: Spawn, tmp_path: Path) -> None:
    worker = await spawn()
    (_, first), last = await rehearse(worker, tmp_path, steps=1)
    await worker.sampler.load("v1", first.path)
    asked = [request(f"beside {n}", version="v1", seed=n, max_tokens=200) for n in range(6)]
    alone = [await worker.sampler.generate(each) for each in asked]
    for each in asked:
        await worker.sampler.release(each.conversation)

    turns = [asyncio.create_task(worker.sampler.generate(each)) for each in asked]
    for _ in range(6):
        await worker.trainer.accumulate("a", (last,))
    await worker.trainer.step("a", str(tmp_path / "2"))
    beside = await asyncio.gather(*turns)
    assert [len(result.tokens) for result in beside] == [200] * 6
    assert all(alike(one, other, TOLERANCE) for one, other in zip(alone, beside, strict=True))


async def test_the_death_of_the_process_is_that_of_both(spawn: Spawn, tmp_path: Path) -> None:
    worker = await spawn()
    await worker.trainer.open("a", CONFIG, str(tmp_path / "0"), False)
    await worker.sampler.load("v0", str(tmp_path / "0"))
    turn = asyncio.create_task(worker.sampler.generate(request("a", max_tokens=400)))
    await worker.sampler.stats()
    os.kill(worker.handle.pid, signal.SIGKILL)
    with pytest.raises(WorkerDied):
        await turn
    with pytest.raises(WorkerDied):
        await worker.trainer.step("a", str(tmp_path / "1"))
