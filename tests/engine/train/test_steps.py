"""A step's metrics by hand, and what a step of the default task takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from marlaas.engine.errors import AdapterError
from marlaas.engine.models.find import load_base
from marlaas.engine.rollout.renderer import Renderer
from marlaas.engine.samplers.llama.model import LlamaSampler
from marlaas.engine.train import trial
from marlaas.engine.train.metrics import StepTally
from marlaas.engine.train.trial import POLICY, loaded, time_sampling, time_training
from marlaas.engine.trainer.advantages import ClosedGroup, RewardSummary
from marlaas.engine.trainer.protocol import GroupStats, StepResult
from marlaas.engine.trainer.torch_trainer import TorchTrainer
from marlaas.engine.trajectories import Episode, Failure, Group, Span, Trajectory

HALVES = np.log(np.array([0.5, 1.5, 0.5, 1.5, 1.0, 1.0])).astype(np.float16)
"""Logarithms of weights with a mean of 1 and a mean square of 7 / 6."""


def group(
    number: int, version: int, rewards: RewardSummary, statuses: tuple[str, ...] = ("ok", "ok"), cut: int = 0
) -> ClosedGroup:
    """A group of members with three tokens each, of which the first ``cut`` met the length limit."""
    trajectory = Trajectory(
        "agent",
        np.zeros(4, np.int32),
        np.array([0, 1, 1, 1], np.uint8),
        np.zeros(4, np.float32),
        (Span(1, 4, version),),
        1.0,
    )
    episodes = tuple(
        Episode(member, status, (replace(trajectory, cut=member < cut),))  # type: ignore[arg-type]
        for member, status in enumerate(statuses)
    )
    made = Group(number, number, version, "e", episodes, replaced=number - 3, lost=number - 4, replayed=number)
    return ClosedGroup(made, rewards)


def test_means_are_over_what_was_measured() -> None:
    tally = StepTally(version=2, kl=True)
    first = group(4, 1, RewardSummary(4, 0.5, 0.5, False, 0.0, 1.0), cut=1)
    paid = replace(first.group.episodes[0], failure=Failure("ValueError: no number", "env.py", 3))
    first = replace(first, group=replace(first.group, episodes=(paid, first.group.episodes[1])))
    tally.add(
        [first],
        GroupStats(
            tokens=6,
            loss=-1.5,
            entropy=3.0,
            clipped=3,
            gap_sum=1.0,
            gap_max=0.5,
            kl=0.6,
            seconds=1.0,
            measured=6,
            weights={4: HALVES},
        ),
    )
    tally.add(
        [group(5, 2, RewardSummary(2, 1.0, 0.0, True, 1.0, 1.0), ("ok", "error"))],
        GroupStats(
            tokens=6, loss=0.0, entropy=0.0, clipped=0, gap_sum=0.0, gap_max=0.0, kl=0.0, seconds=0.0, measured=0
        ),
    )
    metrics = tally.metrics(StepResult(3, "p", "c", 1, 0.125, 0.5, divisor=6.0, learning_rate=1e-3), 2.0)
    assert metrics == {
        "reward": pytest.approx((0.5 * 4 + 1.0 * 2) / 6),
        "reward_min": 0.5,
        "reward_max": 1.0,
        "reward_spread": 0.25,
        "no_signal": 0.5,
        "replaced": 3.0,
        "discarded": 0.6,
        "loss": -0.25,
        "entropy": 0.5,
        "clipped": 0.5,
        "kl": pytest.approx(0.1),
        "grad_norm": 0.125,
        "learning_rate": 1e-3,
        "drift_mean": pytest.approx(1 / 6),
        "surprisal": 0.0,
        "same_reply": 1.0,
        "first_prompts": 1.0,
        "drift_max": 0.5,
        "weight_mean": pytest.approx(1.0, abs=2e-4),
        "weight_ess": pytest.approx(6 / 7, abs=2e-4),  # float16 keeps three digits of a logarithm
        "staleness": 0.5,
        "staleness_max": 1.0,
        "staleness_0": 1.0,
        "staleness_1": 1.0,
        "tokens": 12.0,
        "length": 3.0,
        "length_max": 3.0,
        "cut": 0.25,
        "errors": 1.0,
        "lost": 1.0,
        "replayed": 9.0,
        "on_error": 1.0,
        "update_seconds": 0.5,
        "training_seconds": 1.5,
        "trainer_calls": 2.0,
        "seconds": 2.0,
    }
    assert tally.signal and tally.numbers == [4, 5]


def test_what_is_said_is_compared_over_all_episodes() -> None:
    def said(number: int, prompt: int, *replies: tuple[int, ...]) -> ClosedGroup:
        made = []
        for member, reply in enumerate(replies):
            tokens = np.array([prompt, *reply, 9], np.int32)  # what the environment says last differs from none
            mask = np.array([0, *([1] * len(reply)), 0], np.uint8)
            logprobs = np.where(mask, np.log(0.5), 0.0).astype(np.float32)
            spans = (Span(1, 1 + len(reply), 0),)
            made.append(Episode(member, "ok", (Trajectory("agent", tokens, mask, logprobs, spans, 1.0),)))
        return ClosedGroup(Group(number, number, 0, "e", tuple(made)), RewardSummary(2, 1.0, 0.0, True, 1.0, 1.0))

    tally = StepTally(version=0)
    nothing = GroupStats(tokens=9, loss=0.0, entropy=0.0, clipped=0, gap_sum=0.0, gap_max=0.0, kl=0.0, seconds=0.0)
    tally.add([said(0, 1, (5, 6), (5,)), said(1, 2, (5, 6), (5, 6)), said(2, 2, (7,), (8,))], nothing)
    metrics = tally.metrics(StepResult(1, "p", "c", 1, 0.1, 0.5), 1.0)
    assert metrics["same_reply"] == 3 / 6 and metrics["first_prompts"] == 2.0
    assert metrics["surprisal"] == pytest.approx(np.log(2), rel=1e-6)  # float32 log-probabilities


PASSED = {"entropy", "clipped", "kl", "drift_mean", "drift_max", "weight_mean", "weight_ess"}
"""What only a pass over the groups measures."""

SAID = {"surprisal", "same_reply", "length", "length_max", "cut"}


@pytest.mark.parametrize("kl", [False, True])
def test_what_no_pass_measured_is_left_out(kl: bool) -> None:
    tally = StepTally(version=4, kl=kl)
    tally.add([group(4, 1, RewardSummary(2, 1.0, 0.0, True, 1.0, 1.0))], GroupStats(6, 0.0, 0.0, 0, 0.0, 0.0, 0.0, 0.0))
    metrics = tally.metrics(StepResult(1, "p", "c", 1, 0.0, 0.5), 1.0)
    assert not PASSED & metrics.keys()
    assert metrics["loss"] == metrics["grad_norm"] == 0.0, "without an advantage both are 0"
    assert metrics.keys() >= SAID, "what was said is known without a pass"


async def test_a_step_is_estimated_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "PATIENCE", 0.0)
    base = load_base("tiny")
    sampler = LlamaSampler(str(base.path), str(tmp_path / "gguf"), 64, 256, exact=True)
    trainer = TorchTrainer(str(base.path), base.fingerprint, sync=False)
    renderer, scratch = Renderer(base.path), tmp_path / "scratch"
    scratch.mkdir()
    try:
        async with loaded(sampler, trainer, scratch) as (version, folder):
            sampling = await time_sampling(sampler, renderer, version, 1)
            training = await time_training(trainer, renderer, folder)
        stats = await sampler.stats()
        with pytest.raises(AdapterError, match="not open"):
            await trainer.step(POLICY, str(scratch / "x"))
    finally:
        await sampler.close()
        trainer.shutdown()
    assert sampling > 0 and training > 0
    assert not list(scratch.iterdir())
    assert (stats.active, stats.waiting) == (0, 0)
