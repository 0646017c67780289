"""The trainer keeps its contract with each way to compute; epochs, failed passes, and a device without memory."""

import asyncio
import json
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from marlaas.engine.adapters.statefile import PolicyState, read_state, write_state
from marlaas.engine.devices.limits import LentCores, Loan
from marlaas.engine.errors import AdapterError, BaseModelError
from marlaas.engine.trainer import torch_trainer
from marlaas.engine.trainer.decoder.decoder import Decoder
from marlaas.engine.trainer.group_pass import Work
from marlaas.engine.trainer.losses import LOSSES
from marlaas.engine.trainer.protocol import GroupStats, Job, PolicyConfig, Probe, Refused, TrainGroup, TrainSequence
from marlaas.engine.trainer.torch_trainer import Replicas, TorchTrainer, once_more

from .contract import (
    CONFIG,
    LossContract,
    MovingContract,
    NewTrainer,
    RefusalContract,
    SharingContract,
    StepContract,
    TrainerContract,
    train,
)
from .oracle import Oracle
from .samples import group

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


@pytest.fixture(scope="session", params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextmanager
def trainers(base: str, device: str, folder: Path, **kwargs: Any) -> Iterator[NewTrainer]:
    """Makes trainers, and ends them."""
    made: list[TorchTrainer] = []

    def new(slots: int = 0) -> TorchTrainer:
        scratch = str(folder / "scratch")
        made.append(TorchTrainer(base, "tiny", sync=False, devices=(device,), slots=slots, scratch=scratch, **kwargs))
        return made[-1]

    yield new
    for trainer in made:
        trainer.shutdown()


@pytest.fixture
def new_torch_trainer(base: str, device: str, tmp_path: Path) -> Iterator[NewTrainer]:
    with trainers(base, device, tmp_path) as new:
        yield new


class TestContract(TrainerContract):
    @pytest.fixture
    def new_trainer(self, new_torch_trainer: NewTrainer) -> NewTrainer:
        return new_torch_trainer


@pytest.mark.slow
class TestContractInBfloat16(TrainerContract):
    """The same with a base in sixteen bits; its log-probabilities are some hundredths off.

    Every day ``test_precision`` and ``test_decoder`` show that passes give the updates of float32, bit for bit again.
    """

    tight, relative, summed, moved = (
        0.1,
        0.1,
        1e-4,
        4 * CONFIG.learning_rate,
    )  # at first Adam moves by the signs of gradients

    @pytest.fixture
    def new_trainer(self, base: str, device: str, tmp_path: Path) -> Iterator[NewTrainer]:
        with trainers(base, device, tmp_path, precision="bf16") as new:
            yield new


@pytest.mark.slow
class TestContractWithoutRoom(TrainerContract):
    """The same where no layer keeps more than its input; every day ``test_decoder`` compares such passes."""

    @pytest.fixture
    def new_trainer(self, base: str, device: str, tmp_path: Path) -> Iterator[NewTrainer]:
        with trainers(base, device, tmp_path, room=1) as new:
            yield new


class TestLosses(LossContract):
    @pytest.fixture
    def new_trainer(self, new_torch_trainer: NewTrainer) -> NewTrainer:
        return new_torch_trainer


class TestRefusals(RefusalContract):
    @pytest.fixture
    def new_trainer(self, new_torch_trainer: NewTrainer) -> NewTrainer:
        return new_torch_trainer


class TestMoving(MovingContract):
    @pytest.fixture
    def new_trainer(self, new_torch_trainer: NewTrainer) -> NewTrainer:
        return new_torch_trainer


class TestSharing(SharingContract):
    @pytest.fixture(scope="class")
    @classmethod
    def new_trainer(cls, base: str, device: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewTrainer]:
        with trainers(base, device, tmp_path_factory.mktemp("sharing")) as new:
            yield new


class TestStepsThroughPeft(StepContract):
    """The same for bases that the decoder does not know."""

    @pytest.fixture
    def new_trainer(self, new_torch_trainer: NewTrainer, monkeypatch: pytest.MonkeyPatch) -> NewTrainer:
        monkeypatch.setattr("marlaas.engine.trainer.torch_trainer.unsupported", lambda _: "a test says so")
        return new_torch_trainer


@pytest.mark.slow
class TestContractThroughPeft(TestStepsThroughPeft, TrainerContract):
    """All of the contract: passes are PEFT's, and all else is the code of every day."""


@pytest.mark.slow
class TestSharingThroughPeft(SharingContract):
    """Several policies in one call of a model that passes them one after another."""

    @pytest.fixture(scope="class")
    @classmethod
    def new_trainer(cls, base: str, device: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewTrainer]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("marlaas.engine.trainer.torch_trainer.unsupported", lambda _: "a test says so")
            with trainers(base, device, tmp_path_factory.mktemp("sharing")) as new:
                yield new


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BaseModelError, match=r"holds no config\.json"):
        TorchTrainer(str(tmp_path), "none")
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    with pytest.raises(BaseModelError, match="has no 'num_attention_heads'"):
        TorchTrainer(str(tmp_path), "none")


@pytest.mark.parametrize("before", [True, False])
async def test_a_step_whose_probe_fails_is_refused_by_itself(
    monkeypatch: pytest.MonkeyPatch, new_torch_trainer: NewTrainer, tmp_path: Path, before: bool
) -> None:
    """Whatever fails; the other policy of the call makes its step, and both can continue."""

    def fail(*_: Any) -> torch.Tensor:
        raise RuntimeError("broken")

    trainer, probe = new_torch_trainer(), Probe(((np.arange(1, 9, dtype=np.int32), 3),), before)
    for policy in "ab":
        await trainer.open(policy, CONFIG, str(tmp_path / policy), resume=False)
    jobs = Job("a", (group(1),), probe, str(tmp_path / "a1")), Job("b", (group(1),), path=str(tmp_path / "b1"))
    with monkeypatch.context() as patch:
        patch.setattr(Decoder, "logprobs", fail)
        first, second = await trainer.accumulate_together(jobs)
    assert isinstance(first, Refused) and "policy a failed: RuntimeError: broken" in first.reason
    assert isinstance(second, GroupStats) and second.step is not None and second.step.step == 1
    await trainer.open("a", CONFIG, str(tmp_path / "a"), resume=True)
    assert (await train(trainer, "a", (group(1),), tmp_path / "a1")).step == 1
    assert (await train(trainer, "b", (group(2),), tmp_path / "b2")).step == 2


async def test_a_damaged_page_is_an_error_of_its_policy_alone(base: str, tmp_path: Path) -> None:
    trainer = TorchTrainer(base, "tiny", sync=False, slots=1, scratch=str(tmp_path))
    for policy in ("a", "b", "c"):
        await trainer.open(policy, CONFIG, str(tmp_path / policy), resume=False)
    min(tmp_path.glob("marlaas-pages-*/[0-9a-f]*"), key=lambda page: page.stat().st_mtime_ns).unlink()  # that of a
    done = await trainer.accumulate_together(tuple(Job(policy, (group(1),)) for policy in ("b", "a", "c")))
    assert [isinstance(result, Refused) for result in done] == [False, True, False]
    assert isinstance(done[1], Refused) and "Policy a was paged out" in done[1].reason and "Resume" in done[1].hint
    assert len({(await trainer.step(policy, str(tmp_path / "1"))).checksum for policy in ("b", "c")}) == 1
    await trainer.open("a", CONFIG, str(tmp_path / "a"), resume=True)
    assert (await train(trainer, "a", (group(1),), tmp_path / "1")).step == 1
    trainer.shutdown()
    assert not list(tmp_path.glob("marlaas-pages-*"))


@pytest.mark.parametrize("slots", [0, 1])
async def test_whose_pass_fails_stays_as_it_was_as_do_others(
    slots: int, base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside it in a shared pass, or, with a single slot, in a pass before and one after it."""

    def fail(*_: object) -> None:
        raise OSError("broken")

    trainer = TorchTrainer(base, "tiny", sync=False, slots=slots, scratch=str(tmp_path))
    configs = {"a": CONFIG, "b": replace(CONFIG, loss="cispo"), "c": CONFIG}
    for policy, config in configs.items():
        await trainer.open(policy, config, str(tmp_path / policy), resume=False)
        await trainer.accumulate(policy, (group(1),))
    with monkeypatch.context() as patch:
        patch.setitem(LOSSES, "cispo", fail)
        done = await trainer.accumulate_together(tuple(Job(policy, (group(2),)) for policy in configs))
    assert isinstance(done[1], Refused) and "policy b failed: OSError: broken" in done[1].reason
    beside = {(await trainer.step(policy, str(tmp_path / "1"))).checksum for policy in ("a", "c")}
    failed = (await trainer.step("b", str(tmp_path / "1"))).checksum
    for policy, config in configs.items():
        await trainer.open(policy, config, str(tmp_path / policy), resume=True)
    assert failed == (await train(trainer, "b", (group(1),), tmp_path / "1")).checksum
    assert beside == {(await train(trainer, "a", (group(1), group(2)), tmp_path / "1")).checksum}
    trainer.shutdown()


async def test_a_policy_closed_during_its_step_keeps_nothing(
    base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = TorchTrainer(base, "tiny", sync=False)
    await trainer.open("a", CONFIG, str(tmp_path / "0"), resume=False)
    expected = await train(trainer, "a", (group(1),), tmp_path / "1")
    await trainer.open("a", CONFIG, str(tmp_path / "0"), resume=True)
    await trainer.accumulate("a", (group(2),))
    writing, go_on = threading.Event(), threading.Event()

    def slowly(path: Path, state: PolicyState, sync: bool) -> int:
        writing.set()
        go_on.wait()
        return write_state(path, state, sync)

    monkeypatch.setattr(torch_trainer, "write_state", slowly)
    stepping = asyncio.create_task(trainer.step("a", str(tmp_path / "late")))
    await asyncio.to_thread(writing.wait)
    await trainer.open("a", CONFIG, str(tmp_path / "0"), resume=True)
    go_on.set()
    with pytest.raises(AdapterError, match="closed while a step of it was being written"):
        await stepping
    assert (await train(trainer, "a", (group(1),), tmp_path / "1")).checksum == expected.checksum
    trainer.shutdown()


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system cannot pin threads")
async def test_idle_cores_are_borrowed_but_by_what_must_repeat(
    base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    set_threads = torch.set_num_threads

    def told(count: int) -> None:
        threads.append(count)
        set_threads(count)

    monkeypatch.setattr(torch, "set_num_threads", told)
    cores = sorted(os.sched_getaffinity(0)) * 2
    loan = Loan(str(tmp_path / "cores"), 0, (cores[0],), (cores[1],))
    sampler = LentCores(Loan(loan.path, 1, loan.other, loan.own))
    checksums = {}
    with trainers(base, "cpu", tmp_path, loan=loan) as new, trainers(base, "cpu", tmp_path / "alone") as own:
        lent, alone = new(), own()
        for name, trainer, repeats in (("free", lent, False), ("repeats", lent, True), ("alone", alone, True)):
            await trainer.open(name, replace(CONFIG, repeats=repeats), str(tmp_path / name), resume=False)
            threads.clear()
            await trainer.accumulate(name, (group(1), group(2)))
            checksums[name] = (await trainer.step(name, str(tmp_path / f"{name}-1"))).checksum
            assert threads == ([2, 1] if name == "free" else []), name
        assert checksums["repeats"] == checksums["alone"]
        sampler.work()
        await lent.accumulate("free", (group(3),))
        assert threads == [], "the sampler is at work"


EPOCHS = 3
PPO = PolicyConfig(rank=4, alpha=8.0, loss="ppo", epochs=EPOCHS, learning_rate=2e-2, temperature=0.8)
BATCHES = [(group(1), group(2)), (group(3), group(4))]


@pytest.fixture
def trainer(base: str, tmp_path: Path) -> Iterator[TorchTrainer]:
    trainer = TorchTrainer(base, "tiny", sync=False, slots=1, scratch=str(tmp_path))
    yield trainer
    trainer.shutdown()


class PlainPpo:
    """Decoupled PPO (AReaL, arXiv 2505.24298, equation 5) over a PEFT model, one sequence at a time."""

    def __init__(self, base: str, path: Path) -> None:
        self.oracle = Oracle(base, path)
        self.parameters = list(self.oracle.weights.values())
        self.optimizer = torch.optim.AdamW(self.parameters, PPO.learning_rate, PPO.betas, weight_decay=0.0)
        self.oracle.optimizer = self.optimizer

    def step(self, groups: Sequence[TrainGroup]) -> list[float]:
        """All epochs; returns the norms of their gradients."""
        sequences = [sequence for one in groups for sequence in one.sequences]
        proximal = [self._logp(sequence).detach() for sequence in sequences]
        norms = []
        for _ in range(EPOCHS):
            self.optimizer.zero_grad()
            losses = [self._loss(sequence, before) for sequence, before in zip(sequences, proximal, strict=True)]
            total = torch.stack(losses).sum() / sum(int(sequence.mask.sum()) for sequence in sequences)
            total.backward()  # type: ignore[no-untyped-call]
            norms.append(float(torch.nn.utils.clip_grad_norm_(self.parameters, PPO.clip_norm)))
            self.optimizer.step()
        return norms

    def _loss(self, sequence: TrainSequence, proximal: torch.Tensor) -> torch.Tensor:
        trained = torch.from_numpy(sequence.mask != 0)
        behaviour = torch.from_numpy(sequence.logprobs)[trained]
        weight = (proximal - behaviour).exp().clamp(max=PPO.importance_cap)
        ratio = (self._logp(sequence) - proximal).exp()
        clipped = ratio.clamp(0.8, 1.2)
        objective = torch.minimum(ratio * sequence.advantage, clipped * sequence.advantage)
        if sequence.advantage < 0:
            objective = objective.clamp(min=3.0 * sequence.advantage)  # dual clip, arXiv 1912.09729
        return -(weight * objective).sum()

    def _logp(self, sequence: TrainSequence) -> torch.Tensor:
        trained = torch.from_numpy((sequence.mask != 0)[1:])
        targets = torch.from_numpy(sequence.tokens[1:].astype("int64"))[:, None]
        return self.oracle.logprobs(sequence.tokens, PPO.temperature).gather(1, targets)[:, 0][trained]


async def test_updates_are_those_of_plain_peft(trainer: TorchTrainer, base: str, tmp_path: Path) -> None:
    await trainer.open("a", PPO, str(tmp_path / "0"), resume=False)
    plain = PlainPpo(base, tmp_path / "0")
    for number, groups in enumerate(BATCHES, start=1):
        norms = plain.step(groups)
        result = await train(trainer, "a", groups, tmp_path / str(number))
        assert result.step == number
        assert result.grad_norm == pytest.approx(max(norms), rel=1e-3)
        header = read_state(tmp_path / str(number)).header
        assert (header.step, header.updates) == (number, number * EPOCHS)
    assert plain.oracle.distance(read_state(tmp_path / "2")) < 2e-4  # a hundredth of the learning rate


async def test_a_step_that_fails_in_a_later_epoch_has_not_happened(
    trainer: TorchTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await trainer.open("a", PPO, str(tmp_path / "0"), resume=False)
    expected = await train(trainer, "a", BATCHES[0], tmp_path / "1")
    await trainer.open("a", PPO, str(tmp_path / "0"), resume=True)
    for one in BATCHES[0]:
        await trainer.accumulate("a", (one,))

    def explode(replicas: Replicas, work: Work) -> tuple[GroupStats, ...]:
        stats = add_gradients(replicas, work)
        work[0][0].gradient.fill_(torch.inf)
        return stats

    add_gradients = Replicas.add_gradients
    with monkeypatch.context() as patch:
        patch.setattr(Replicas, "add_gradients", explode)
        with pytest.raises(AdapterError, match=r"gradient is not finite, so step 1 was not made \(its norm is inf"):
            await trainer.step("a", str(tmp_path / "2"))
    assert not (tmp_path / "2").exists()
    again = await trainer.step("a", str(tmp_path / "2"))
    assert (again.step, again.checksum) == (1, expected.checksum)


CHILD = """
import asyncio, ctypes, json, resource, sys
from pathlib import Path
import numpy as np
from marlaas.engine.models.find import load_base
from marlaas.engine.trainer.protocol import PolicyConfig, TrainGroup, TrainSequence
from marlaas.engine.trainer.torch_trainer import TorchTrainer

folder, least, answer, room = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), 1 << 40
config = PolicyConfig(rank=4, alpha=8.0, denominator=1000.0)

def draw(number, prompt=200, answer=60, members=8):
    random = np.random.default_rng(number)
    start = random.integers(0, 90, prompt)
    mask = np.repeat(np.array([0, 1], dtype=np.uint8), (prompt, answer))
    return TrainGroup(number, tuple(
        TrainSequence(np.concatenate([start, random.integers(0, 90, answer)]).astype(np.int32), mask,
                      np.where(mask, np.float32(-2.0), np.float32(0.0)), float(advantage))
        for advantage in random.normal(size=members)))

library = ctypes.CDLL(None)
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]

def heap():
    line = next(line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith("[heap]"))
    return [int(end, 16) for end in line.split()[0].split("-")]

def block(size=8 << 20):
    "Whether a block lies in the heap, and stays there when it is free."
    address = library.malloc(size)
    begin, end = heap()
    library.free(address)
    return begin <= address and address + size <= end, heap()[1] == end

def size():
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()

async def main():
    base = load_base("tiny")
    trainer = TorchTrainer(str(base.path), base.fingerprint, sync=False, room=room, names=("core 7",))
    small, groups = draw(0, 8, 4), tuple(draw(number, answer=answer) for number in range(1, 5))
    # what never is given back has been taken before the limit falls
    await trainer.open("a", config, str(folder / "warm"), resume=False)
    await trainer.accumulate("a", (small,))
    await trainer.step("a", str(folder / "warm"))
    kept = await asyncio.to_thread(block)
    await trainer.open("a", config, str(folder / "0"), resume=False)
    await trainer.open("b", config, str(folder / "0"), resume=False)
    await trainer.accumulate("a", (small,))
    await trainer.accumulate("b", (small,))
    free = least << 20
    resource.setrlimit(resource.RLIMIT_AS, (size() + free, resource.RLIM_INFINITY))
    found = {"error": "", "notice": "", "heap": kept}
    try:
        found["notice"] = (await trainer.accumulate("a", groups)).notice
        found["again"] = (await trainer.accumulate("a", (small,))).notice  # it fitted before there were smaller passes
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    if not found["error"]:
        found["norm"] = (await trainer.step("a", str(folder / "a"))).grad_norm
        await trainer.accumulate("b", groups)
        await trainer.accumulate("b", (small,))
        found["expected"] = (await trainer.step("b", str(folder / "b"))).grad_norm
    print(json.dumps(found))
    trainer.shutdown()

asyncio.run(main())
"""


def run(folder: Path, mebibytes: int, answer: int = 60) -> dict[str, object]:
    words = [sys.executable, "-P", "-c", CHILD, str(folder), str(mebibytes), str(answer)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


async def test_a_pass_that_does_not_fit_is_undone_and_made_smaller(
    base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, differentiate, passes = (
        TorchTrainer(base, "tiny", sync=False, names=("core 7",)),
        Decoder.differentiate,
        [],
    )
    await trainer.open("a", CONFIG, str(tmp_path / "0"), resume=False)
    expected = await train(trainer, "a", (group(1), group(2)), tmp_path / "1")
    await trainer.open("a", CONFIG, str(tmp_path / "0"), resume=True)

    def full(model: Decoder, batch: Any, *given: Any) -> None:
        passes.append(len(batch.tokens))
        differentiate(model, batch, *given)
        if len(passes) == 1:
            raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(Decoder, "differentiate", full)
    stats = await trainer.accumulate("a", (group(1), group(2)))
    assert stats.notice == "Training ran out of memory on core 7; passes are half as large from now on."
    assert max(passes[1:]) <= passes[0] / 2 < sum(passes[1:])
    again = await trainer.step("a", str(tmp_path / "1"))
    assert again.grad_norm == pytest.approx(expected.grad_norm, rel=1e-4)
    trainer.shutdown()


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.usefixtures("main_library")
@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
def test_what_does_not_fit_trains_in_smaller_passes(tmp_path: Path) -> None:
    found = run(tmp_path, 60)
    assert found["error"] == ""
    assert str(found["notice"]).startswith("Training ran out of memory on core 7; passes are ")
    assert found["again"] == ""
    assert found["norm"] == pytest.approx(found["expected"], rel=1e-4)
    glibc = platform.libc_ver()[0] == "glibc"
    assert not glibc or found["heap"] == [True, True], "threads share one heap, which keeps freed memory"


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
def test_where_not_even_a_sequence_fits_there_is_a_sentence(tmp_path: Path) -> None:
    found = run(tmp_path, 1, answer=3000)  # what the heap has kept, some 50 MB, is not enough for one of these
    assert str(found["error"]).startswith(
        "AdapterError: Training ran out of memory on core 7, even with a single sequence in a pass. Lower "
    )


def test_a_step_without_memory_is_tried_once_more() -> None:
    attempts: list[int] = []

    def work(needed: int) -> int:
        attempts.append(needed)
        if len(attempts) < needed:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return needed

    assert once_more("gpu 0", lambda: work(2)) == 2
    attempts.clear()
    with pytest.raises(AdapterError, match="no memory on gpu 0 for an optimizer step"):
        once_more("gpu 0", lambda: work(3))


async def test_an_optimizer_step_without_memory_shrinks_no_pass(
    base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All policies share their size. The gradient stays, so that the step can be made later."""

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("out of memory")

    trainer, smaller = TorchTrainer(base, "tiny", sync=False), list[str]()
    await trainer.open("a", CONFIG, str(tmp_path / "0"), resume=False)
    await trainer.accumulate("a", (group(1),))
    with monkeypatch.context() as patch, pytest.raises(AdapterError, match="for an optimizer step"):
        patch.setattr(Decoder, "shrink", lambda _: smaller.append("shrunk"))
        patch.setattr("marlaas.engine.trainer.group_pass.adamw", full)
        await trainer.step("a", str(tmp_path / "1"))
    assert not smaller and (await trainer.step("a", str(tmp_path / "1"))).grad_norm > 0.0
    trainer.shutdown()
