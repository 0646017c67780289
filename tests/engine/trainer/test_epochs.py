"""Several updates on one step's groups: those of plain PEFT and AdamW, one version, and nothing lost on the way."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from marlaas.engine.adapters.statefile import read_state
from marlaas.engine.errors import AdapterError
from marlaas.engine.trainer.group_pass import Work
from marlaas.engine.trainer.protocol import GroupStats, PolicyConfig, TrainGroup, TrainSequence
from marlaas.engine.trainer.torch_trainer import Replicas, TorchTrainer

from .contract import train
from .oracle import Oracle
from .samples import group

EPOCHS = 3
CONFIG = PolicyConfig(rank=4, alpha=8.0, loss="ppo", epochs=EPOCHS, learning_rate=2e-2, temperature=0.8)
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
        self.optimizer = torch.optim.AdamW(self.parameters, CONFIG.learning_rate, CONFIG.betas, weight_decay=0.0)
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
            norms.append(float(torch.nn.utils.clip_grad_norm_(self.parameters, CONFIG.clip_norm)))
            self.optimizer.step()
        return norms

    def _loss(self, sequence: TrainSequence, proximal: torch.Tensor) -> torch.Tensor:
        trained = torch.from_numpy(sequence.mask != 0)
        behaviour = torch.from_numpy(sequence.logprobs)[trained]
        weight = (proximal - behaviour).exp().clamp(max=CONFIG.importance_cap)
        ratio = (self._logp(sequence) - proximal).exp()
        clipped = ratio.clamp(0.8, 1.2)
        objective = torch.minimum(ratio * sequence.advantage, clipped * sequence.advantage)
        if sequence.advantage < 0:
            objective = objective.clamp(min=3.0 * sequence.advantage)  # dual clip, arXiv 1912.09729
        return -(weight * objective).sum()

    def _logp(self, sequence: TrainSequence) -> torch.Tensor:
        trained = torch.from_numpy((sequence.mask != 0)[1:])
        targets = torch.from_numpy(sequence.tokens[1:].astype("int64"))[:, None]
        return self.oracle.logprobs(sequence.tokens, CONFIG.temperature).gather(1, targets)[:, 0][trained]


async def test_updates_are_those_of_plain_peft(trainer: TorchTrainer, base: str, tmp_path: Path) -> None:
    await trainer.open("a", CONFIG, str(tmp_path / "0"), resume=False)
    plain = PlainPpo(base, tmp_path / "0")
    for number, groups in enumerate(BATCHES, start=1):
        norms = plain.step(groups)
        result = await train(trainer, "a", groups, tmp_path / str(number))
        assert result.step == number
        assert result.grad_norm == pytest.approx(max(norms), rel=1e-3)
        header = read_state(tmp_path / str(number)).header
        assert (header.step, header.updates) == (number, number * EPOCHS)
    assert plain.oracle.distance(read_state(tmp_path / "2")) < 2e-4  # a hundredth of the learning rate


async def test_both_counters_survive_a_resume(trainer: TorchTrainer, tmp_path: Path) -> None:
    config = replace(CONFIG, schedule="linear", steps=4, warmup=1)
    await trainer.open("a", config, str(tmp_path / "0"), resume=False)
    for number, groups in enumerate(BATCHES, start=1):
        last = await train(trainer, "a", groups, tmp_path / str(number))
    resumed = await trainer.open("a", config, str(tmp_path / "1"), resume=True)
    assert resumed.step == 1
    again = await train(trainer, "a", BATCHES[1], tmp_path / "again")
    assert again.step == 2
    assert again.learning_rate == last.learning_rate == pytest.approx(CONFIG.learning_rate)
    assert (tmp_path / "again").read_bytes() == (tmp_path / "2").read_bytes()


async def test_a_policy_that_was_paged_out_remembers_its_groups(trainer: TorchTrainer, tmp_path: Path) -> None:
    await trainer.open("a", CONFIG, str(tmp_path / "0"), resume=False)
    expected = await train(trainer, "a", BATCHES[0], tmp_path / "1")
    for policy in ("a", "b"):
        await trainer.open(policy, CONFIG, str(tmp_path / policy), resume=False)
    for one in BATCHES[0]:
        for policy in ("a", "b"):  # there is one slot
            await trainer.accumulate(policy, (one,))
    for policy in ("b", "a"):
        assert (await trainer.step(policy, str(tmp_path / policy))).checksum == expected.checksum


async def test_a_step_that_fails_in_a_later_epoch_has_not_happened(
    trainer: TorchTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await trainer.open("a", CONFIG, str(tmp_path / "0"), resume=False)
    expected = await train(trainer, "a", BATCHES[0], tmp_path / "1")
    await trainer.open("a", CONFIG, str(tmp_path / "0"), resume=True)
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
