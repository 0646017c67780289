"""The three means, by hand; and that it does not matter how a step is cut into batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from marlaas.engine.spec.losses import PUBLISHED, constant_denominator
from marlaas.engine.trainer.group_pass import PolicyLoss, divisor
from marlaas.engine.trainer.losses import LOSSES
from marlaas.engine.trainer.model import trained_tokens_of
from marlaas.engine.trainer.protocol import PolicyConfig, TrainSequence

LOGP = -1.0
EPISODES, LONGEST = 2, 8


def sequence(count: int, advantage: float, episode_tokens: int = 0) -> TrainSequence:
    """A prompt token and ``count`` trained ones, sampled by the policy itself."""
    mask = np.array([0] + [1] * count, np.uint8)
    return TrainSequence(np.zeros(count + 1, np.int32), mask, mask * np.float32(LOGP), advantage, episode_tokens)


def gradients(loss: str, batches: list[list[TrainSequence]], kl: float = 0.0) -> tuple[list[float], PolicyLoss, float]:
    """The divided gradient of every token of a step of two episodes, its sums, and what it was divided by."""
    config = PolicyConfig(loss=loss, kl=kl, denominator=constant_denominator(loss, EPISODES, LONGEST))
    policy, found = PolicyLoss(config), []
    for sequences in batches:
        trained = trained_tokens_of(sequences)
        logp = torch.full((len(trained.targets),), LOGP)
        base = logp - 0.5 if kl else None
        found.append(policy.gradient(trained, base, logp, torch.zeros_like(logp)).logp)
    shared = divisor(config, policy.measured)
    return (torch.cat(found) / shared).tolist(), policy, shared


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        # advantages 1 over one token, −2 over three; on-policy the gradient of a token's loss is −A
        ("dr_grpo", [-1 / 16, 2 / 16, 2 / 16, 2 / 16]),  # 2 episodes of at most 8 tokens
        ("reinforce", [-1 / 2, 2 / 2, 2 / 2, 2 / 2]),  # 2 episodes
        ("grpo", [-1 / 2, 2 / 6, 2 / 6, 2 / 6]),  # 2 episodes, of them 1 and 3 tokens
        ("gspo", [-1 / 2, 2 / 6, 2 / 6, 2 / 6]),
        ("dapo", [-1 / 4, 2 / 4, 2 / 4, 2 / 4]),  # 4 tokens
        ("cispo", [-1 / 4, 2 / 4, 2 / 4, 2 / 4]),
        ("ppo", [-1 / 4, 2 / 4, 2 / 4, 2 / 4]),
    ],
)
def test_each_mean_by_hand(loss: str, expected: list[float]) -> None:
    assert gradients(loss, [[sequence(1, 1.0), sequence(3, -2.0)]])[0] == pytest.approx(expected)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_step_in_one_batch_is_a_step_in_several(loss: str) -> None:
    one, other, third = sequence(1, 1.0), sequence(3, -2.0), sequence(2, 0.5)
    whole, together, shared = gradients(loss, [[one, other, third]], kl=0.1)
    apart, sums, same = gradients(loss, [[one], [other, third]], kl=0.1)
    assert apart == pytest.approx(whole) and shared == same
    assert (sums.loss, sums.kl, sums.measured) == pytest.approx((together.loss, together.kl, together.measured))


def test_the_parts_of_an_episode_share_its_mean() -> None:
    """An episode of four tokens in two trajectories weighs as much as one of four tokens in one."""
    parts = gradients("grpo", [[sequence(1, 1.0, 4), sequence(3, 1.0, 4), sequence(4, -1.0, 4)]])[0]
    assert parts == pytest.approx([-1 / 8] * 4 + [1 / 8] * 4)


@pytest.mark.parametrize(("loss", "weight"), [("dr_grpo", 1 / 16), ("grpo", 1 / 6), ("dapo", 1 / 3)])
def test_the_divergence_is_weighed_as_the_loss_is(loss: str, weight: float) -> None:
    # the base is half a nat below: k3 is e^−0.5 − 0.5, its derivative 1 − e^−0.5
    found, policy, shared = gradients(loss, [[sequence(3, 0.0)]], kl=0.1)
    assert found == pytest.approx([0.1 * 0.3934693 * weight] * 3)
    assert policy.kl == pytest.approx(3 * 0.1065307)
    share = 1 / 3 if loss == "grpo" else 1.0
    assert policy.loss / shared == pytest.approx(0.1 * 3 * 0.1065307 * share / shared)


def test_a_step_without_a_token_divides_by_one() -> None:
    assert divisor(PolicyConfig(loss="dapo"), 0) == 1.0


@pytest.mark.parametrize("loss", LOSSES)
def test_the_entropy_bonus_is_weighed_as_the_loss_is(loss: str) -> None:
    """0.3 nats' worth off each token's loss, in the mean of the loss; without a weight there is no gradient at all."""
    config = PolicyConfig(loss=loss, entropy=0.3, denominator=constant_denominator(loss, EPISODES, LONGEST))
    trained = trained_tokens_of([sequence(1, 0.0), sequence(3, 0.0)])
    policy, logp, entropy = PolicyLoss(config), torch.full((4,), LOGP), torch.tensor([1.0, 2.0, 3.0, 4.0])
    slopes = policy.gradient(trained, None, logp, entropy)
    shared = divisor(config, policy.measured)
    weights = {"constant": [1 / 16] * 4, "episode": [1 / 2] * 4, "token": [1 / 4] * 4}
    expected = [0.3 * w for w in weights.get(PUBLISHED[loss].mean, [1 / 2, 1 / 6, 1 / 6, 1 / 6])]
    assert slopes.entropy is not None and not slopes.logp.any()
    assert (slopes.entropy / shared).tolist() == pytest.approx([-weight for weight in expected])
    assert policy.loss / shared == pytest.approx(
        -sum(w * h for w, h in zip(expected, (1.0, 2.0, 3.0, 4.0), strict=True))
    )
    plain = PolicyLoss(PolicyConfig(loss=loss)).gradient(trained, None, logp.detach(), entropy)
    assert plain.entropy is None
