"""What every trainer keeps with every loss: subclass ``LossContract`` and give it ``new_trainer``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from marlaas.engine.spec.losses import published
from marlaas.engine.trainer.losses import LOSSES
from marlaas.engine.trainer.protocol import GroupStats, StepResult, Trainer, TrainGroup

from ...seldom import often
from .contract import CONFIG, NewTrainer, train
from .samples import group, sequence

GROUPS = (group(1), group(2), group(3, members=2))
TOKENS = sum(int(s.mask.sum()) for some in GROUPS for s in some.sequences)
EMPTY = TrainGroup(9, ())


EVERY_DAY = ("dr_grpo", "dapo")
"""One with each divisor; the gradient of every loss is taken by hand in ``test_policy_loss``."""


class LossContract:
    @pytest.fixture
    def new_trainer(self) -> NewTrainer:
        """See ``TrainerContract``."""
        raise NotImplementedError

    @pytest.fixture
    def trainer(self, new_trainer: NewTrainer) -> Trainer:
        return new_trainer()

    @pytest.mark.parametrize("loss", often(EVERY_DAY, LOSSES))
    async def test_a_step_is_the_same_in_whatever_calls_its_groups_come(
        self, trainer: Trainer, tmp_path: Path, loss: str
    ) -> None:
        """The divisor of a mean over tokens is known at the step alone; no call may divide by its own."""
        config = replace(CONFIG, loss=loss, clip_norm=0.0)
        made: list[tuple[StepResult, list[GroupStats]]] = []
        for name, calls in (("a", [GROUPS]), ("b", [(GROUPS[2],), (), (EMPTY,), (GROUPS[1], GROUPS[0])])):
            await trainer.open(name, config, str(tmp_path / name), resume=False)
            stats = [await trainer.accumulate(name, call) for call in calls]
            made.append((await trainer.step(name, str(tmp_path / f"{name}1")), stats))
        (one, whole), (other, parts) = made
        assert one.divisor == other.divisor == (TOKENS if published(loss).mean == "token" else CONFIG.denominator)
        assert other.grad_norm == pytest.approx(one.grad_norm, rel=1e-5) and one.grad_norm > 0
        assert sum(s.loss for s in parts) == pytest.approx(whole[0].loss, rel=1e-4)

    @pytest.mark.parametrize("loss", often(EVERY_DAY, LOSSES))
    async def test_what_is_rewarded_becomes_likely(self, trainer: Trainer, tmp_path: Path, loss: str) -> None:
        config = replace(CONFIG, loss=loss, denominator=8.0, learning_rate=3e-2)
        await trainer.open("a", config, str(tmp_path / "0"), resume=False)
        answers, right = range(8, 16), 11
        asked = np.array([1, 2, right], dtype=np.int32)
        before = float((await trainer.score("a", asked, 2, 1.0))[0])
        for number in range(8):
            members = []
            for answer in answers:
                tokens = np.array([1, 2, answer], dtype=np.int32)
                (logprob,) = await trainer.score("a", tokens, 2, 1.0)
                members.append(sequence(tokens.tolist(), 2, (answer == right) - 1 / 8, logprob=float(logprob)))
            await train(trainer, "a", (TrainGroup(number, tuple(members)),), tmp_path / f"{number + 1}")
        after = float((await trainer.score("a", asked, 2, 1.0))[0])
        assert np.exp(before) < 0.3 < 0.8 < np.exp(after)

    @pytest.mark.parametrize("loss", often(EVERY_DAY, LOSSES))
    async def test_an_entropy_bonus_makes_answers_more_random(
        self, trainer: Trainer, tmp_path: Path, loss: str
    ) -> None:
        """Of a group of equal rewards, too: its gradient is the bonus alone."""
        config = replace(CONFIG, loss=loss, entropy=1.0, learning_rate=1e-2)
        await trainer.open("a", config, str(tmp_path / "0"), resume=False)
        some = TrainGroup(1, tuple(replace(s, advantage=0.0) for s in group(1).sequences))
        spread = []
        for number in range(1, 6):
            stats = await trainer.accumulate("a", (replace(some, number=number),))
            spread.append(stats.entropy / stats.measured)
            await trainer.step("a", str(tmp_path / f"{number}"))
        assert sorted(spread) == spread and spread[-1] > spread[0] + 0.01

    @pytest.mark.parametrize("kl", [0.0, 0.5])
    async def test_a_group_of_which_nothing_is_left_adds_nothing(
        self, trainer: Trainer, tmp_path: Path, kl: float
    ) -> None:
        """Its episodes were all cut off, and the task leaves such episodes out."""
        await trainer.open("a", replace(CONFIG, loss="dapo", kl=kl), str(tmp_path / "0"), resume=False)
        stats = await trainer.accumulate("a", (EMPTY,))
        assert (stats.tokens, stats.measured, stats.loss) == (0, 0, 0.0)
        result = await trainer.step("a", str(tmp_path / "1"))
        assert (result.step, result.grad_norm, result.divisor) == (1, 0.0, 1.0)
