import asyncio
import os
import threading
from collections.abc import Iterator
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
from marlaas.engine.trainer.decoder.packing import PackedBatch
from marlaas.engine.trainer.losses import LOSSES, TokenLoss
from marlaas.engine.trainer.model import Model
from marlaas.engine.trainer.protocol import Job, Probe, Refused
from marlaas.engine.trainer.torch_trainer import TorchTrainer, load_model

from .contract import CONFIG, TIGHT, NewTrainer, StepContract, TrainerContract, train
from .contract_losses import LossContract
from .contract_moving import MovingContract
from .contract_refusals import RefusalContract
from .contract_sharing import SharingContract
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


class TestStepsInBfloat16(StepContract):
    """The same with a base in sixteen bits; its log-probabilities are some hundredths off."""

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
class TestContractInBfloat16(TestStepsInBfloat16, TrainerContract):
    """All of the contract: the base's numbers are others, and all else is the code of float32."""


class TestStepsWithoutRoom(StepContract):
    """The same where no layer keeps more than its input."""

    @pytest.fixture
    def new_trainer(self, base: str, device: str, tmp_path: Path) -> Iterator[NewTrainer]:
        with trainers(base, device, tmp_path, room=1) as new:
            yield new


@pytest.mark.slow
class TestContractWithoutRoom(TestStepsWithoutRoom, TrainerContract):
    """All of the contract: layers compute twice, and all else is the code of every day."""


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


async def test_a_state_of_another_base_is_refused(base: str, new_torch_trainer: NewTrainer, tmp_path: Path) -> None:
    await new_torch_trainer().open("a", CONFIG, str(tmp_path / "0"), resume=False)
    assert read_state(tmp_path / "0").header.base == "tiny"
    other = TorchTrainer(base, "other", sync=False)
    with pytest.raises(AdapterError, match="belongs to base model tiny, but this trainer holds other"):
        await other.open("a", CONFIG, str(tmp_path / "0"), resume=True)
    other.shutdown()


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BaseModelError, match=r"holds no config\.json"):
        TorchTrainer(str(tmp_path), "none")
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    with pytest.raises(BaseModelError, match="has no 'num_attention_heads'"):
        TorchTrainer(str(tmp_path), "none")


async def test_a_given_model_is_made_in_the_trainer_thread(base: str, tmp_path: Path) -> None:
    threads: list[str] = []

    def make() -> Model[Any]:
        threads.append(threading.current_thread().name)
        return load_model(base)

    trainer = TorchTrainer("", "tiny", sync=False, model=make)
    assert (await trainer.open("a", CONFIG, str(tmp_path / "0"), resume=False)).step == 0
    trainer.shutdown()
    assert [name.partition("_")[0] for name in threads] == ["trainer"]


async def test_a_gradient_that_is_not_finite_makes_no_step(
    new_torch_trainer: NewTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = new_torch_trainer()
    await trainer.open("a", CONFIG, str(tmp_path / "0"), resume=False)
    monkeypatch.setitem(LOSSES, "dr_grpo", lambda view, _: TokenLoss(view.logp * torch.nan, view.logp > 0))
    await trainer.accumulate("a", (group(1),))
    with pytest.raises(AdapterError, match="not finite, so step 1 was not made"):
        await trainer.step("a", str(tmp_path / "1"))
    assert not (tmp_path / "1").exists()


async def test_a_pass_that_fails_halfway_closes_the_policy(
    new_torch_trainer: NewTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("broken")

    trainer = new_torch_trainer()
    await trainer.open("a", CONFIG, str(tmp_path / "0"), resume=False)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="broken"):
        patch.setitem(LOSSES, "dr_grpo", fail)
        await trainer.accumulate("a", (group(1),))
    with pytest.raises(AdapterError, match="not open"):
        await trainer.step("a", str(tmp_path / "1"))
    await trainer.open("a", CONFIG, str(tmp_path / "0"), resume=True)
    assert (await train(trainer, "a", (group(1),), tmp_path / "1")).step == 1


async def test_a_probe_of_many_sequences_is_one_pass(
    monkeypatch: pytest.MonkeyPatch, new_torch_trainer: NewTrainer, tmp_path: Path
) -> None:
    trainer, passes, logprobs = new_torch_trainer(), list[int](), Decoder.logprobs

    def noting(model: Decoder, batch: PackedBatch, *given: Any) -> torch.Tensor:
        passes.append(sum(len(lesson.sequences) for lesson in batch.lessons))
        return logprobs(model, batch, *given)

    await trainer.open("a", CONFIG, str(tmp_path / "a-0"), False)
    wanted = tuple((np.arange(1, 9 + number, dtype=np.int32), 3 + number % 4) for number in range(8))
    monkeypatch.setattr(Decoder, "logprobs", noting)
    scores = (await trainer.accumulate("a", (group(1),), Probe(wanted))).scores
    assert passes == [8]
    for (tokens, start), own in zip(wanted, scores, strict=True):
        assert np.allclose(own, await trainer.score("a", tokens, start, CONFIG.temperature), atol=TIGHT)


async def test_a_probe_that_fails_leaves_its_policy_open(
    monkeypatch: pytest.MonkeyPatch, new_torch_trainer: NewTrainer, tmp_path: Path
) -> None:
    def fail(*_: Any) -> torch.Tensor:
        raise AdapterError("broken")

    trainer, probe = new_torch_trainer(), Probe(((np.arange(1, 9, dtype=np.int32), 3),))
    for policy in "ab":
        await trainer.open(policy, CONFIG, str(tmp_path / policy), resume=False)
    with monkeypatch.context() as patch:
        patch.setattr(Decoder, "logprobs", fail)
        with pytest.raises(AdapterError, match="broken"):
            await trainer.accumulate("a", (group(1),), probe)
        first, second = await trainer.accumulate_together((Job("a", (group(1),), probe), Job("b", (group(1),))))
    assert isinstance(first, Refused) and not isinstance(second, Refused)
    assert (await train(trainer, "a", (group(1),), tmp_path / "1")).step == 1


async def test_the_event_loop_stays_free_while_it_works(new_torch_trainer: NewTrainer, tmp_path: Path) -> None:
    trainer = new_torch_trainer()
    opening = asyncio.create_task(trainer.open("a", CONFIG, str(tmp_path / "0"), resume=False))
    await asyncio.sleep(0)
    assert not opening.done()
    assert (await opening).step == 0


async def test_a_rank_that_no_slot_takes_is_refused(base: str, tmp_path: Path) -> None:
    trainer = TorchTrainer(base, "tiny", sync=False, largest_rank=8)
    await trainer.open("a", replace(CONFIG, rank=8), str(tmp_path / "0"), resume=False)
    with pytest.raises(ValueError, match=r"rank is 9, but a slot takes 8 at most: lower `rank` .* `largest_rank`"):
        await trainer.open("b", replace(CONFIG, rank=9), str(tmp_path / "1"), resume=False)
    assert not (tmp_path / "1").exists()
    trainer.shutdown()


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
async def test_whose_pass_fails_is_closed_and_those_beside_it_go_on(
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
    with pytest.raises(AdapterError, match="not open"):
        await trainer.step("b", str(tmp_path / "1"))
    await trainer.open("a", CONFIG, str(tmp_path / "a"), resume=True)
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


async def test_models_without_shared_passes_do_jobs_one_by_one(
    base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marlaas.engine.trainer.torch_trainer.unsupported", lambda _: "a test says so")
    trainer = TorchTrainer(base, "tiny", sync=False)
    configs = {"a": CONFIG, "b": replace(CONFIG, rank=2, kl=0.1), "c": replace(CONFIG, loss="ppo", epochs=2)}
    for policy, config in configs.items():
        await trainer.open(policy, config, str(tmp_path / policy), resume=False)
    alone = [(await train(trainer, policy, (group(1),), tmp_path / "1")).checksum for policy in configs]
    for policy, config in configs.items():
        await trainer.open(policy, config, str(tmp_path / policy), resume=True)
    await trainer.accumulate_together(tuple(Job(policy, (group(1),)) for policy in configs))
    assert [(await trainer.step(policy, str(tmp_path / "1"))).checksum for policy in configs] == alone
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
