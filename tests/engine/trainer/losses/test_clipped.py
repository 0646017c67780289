"""GRPO (arXiv 2402.03300, equation 3) and DAPO (arXiv 2503.14476, equation 8), value by value."""

from math import log

import pytest
import torch
from hypothesis import given, strategies as st

from marlaas.engine.spec.losses import PUBLISHED
from marlaas.engine.trainer.protocol import PolicyConfig

from .views import loss_of, view

# ratios 1.25, 1.25, 0.75, 0.75 and 1.1, each sampled at 0.4
LOGP = [log(0.5), log(0.5), log(0.3), log(0.3), log(0.44)]
BEHAVIOUR = [log(0.4)] * 5
ADVANTAGE = [2.0, -2.0, 2.0, -2.0, 1.0]


def test_grpo_by_hand() -> None:
    values, clipped, gradient = loss_of(view(LOGP, BEHAVIOUR, ADVANTAGE), PolicyConfig(loss="grpo"))
    # clipped to 0.8 … 1.2; the lower of r·A and clip(r)·A: 2.4, −2.5, 1.5, −1.6, 1.1
    assert values == pytest.approx([-2.4, 2.5, -1.5, 1.6, -1.1])
    assert clipped == [True, False, False, True, False]
    # the gradient of −r·A by log pi is −r·A, where the clip does not take it
    assert gradient == pytest.approx([0.0, 2.5, -1.5, 0.0, -1.1])


def test_dapo_clips_higher() -> None:
    values, clipped, gradient = loss_of(view(LOGP, BEHAVIOUR, ADVANTAGE), PolicyConfig(loss="dapo"))
    # 1.25 is within 0.8 … 1.28: an unlikely token may become more likely
    assert values == pytest.approx([-2.5, 2.5, -1.5, 1.6, -1.1])
    assert clipped == [False, False, False, True, False]
    assert gradient == pytest.approx([-2.5, 2.5, -1.5, 0.0, -1.1])


def test_the_range_can_be_chosen() -> None:
    config = PolicyConfig(loss="grpo", clip_low=0.3, clip_high=0.05)
    values, clipped, _ = loss_of(view(LOGP, BEHAVIOUR, ADVANTAGE), config)
    assert values == pytest.approx([-2.1, 2.5, -1.5, 1.5, -1.05])  # 0.7 … 1.05
    assert clipped == [True, False, False, False, True]


def test_masked_tokens_are_not_trained_on() -> None:
    config = PolicyConfig(loss="dapo", importance="mask", importance_cap=1.2, importance_floor=0.5)
    values, clipped, gradient = loss_of(view(LOGP, BEHAVIOUR, ADVANTAGE), config)
    assert values == pytest.approx([0.0, 0.0, -1.5, 1.6, -1.1])
    assert clipped == [True, True, False, True, False]
    assert gradient == pytest.approx([0.0, 0.0, -1.5, 0.0, -1.1])


@pytest.mark.parametrize("importance", ["truncate", "none"])
def test_a_ratio_that_corrects_takes_no_further_weight(importance: str) -> None:
    config = PolicyConfig(loss="grpo", importance=importance, importance_cap=1.01)
    assert loss_of(view(LOGP, BEHAVIOUR, ADVANTAGE), config)[0] == pytest.approx([-2.4, 2.5, -1.5, 1.6, -1.1])


def test_an_absurd_ratio_stays_finite() -> None:
    config = PolicyConfig(loss="grpo", clip_dual=1e9)
    values, _, gradient = loss_of(view([-0.1], [-1000.0], [-1.0]), config)
    assert values == pytest.approx([485165195.4098]) and gradient == [0.0]  # exp(20)


def test_the_dual_clip_by_hand() -> None:
    # ratios 4, 2.5 and 4, each sampled at 0.2; c = 3
    tokens = view([log(0.8), log(0.5), log(0.8)], [log(0.2)] * 3, [-2.0, -2.0, 2.0])
    values, clipped, gradient = loss_of(tokens, PolicyConfig(loss="grpo"))
    # 4·−2 is below 3·−2; 2.5·−2 is not; a positive advantage is clipped at 1.2 as ever
    assert values == pytest.approx([6.0, 5.0, -2.4])
    assert clipped == [True, False, True]
    assert gradient == pytest.approx([0.0, 5.0, 0.0])
    assert loss_of(tokens, PolicyConfig(loss="grpo", clip_dual=10.0))[2] == pytest.approx([8.0, 5.0, 0.0])
    assert loss_of(tokens, PolicyConfig(loss="dapo", clip_dual=2.0))[2] == pytest.approx([0.0, 0.0, 0.0])


@pytest.mark.parametrize("loss", PUBLISHED)
def test_no_token_takes_the_gradient_of_a_hundred(loss: str) -> None:
    """One that the sampler found at −9 and the trainer at −1, with a negative advantage: 97 % without a bound."""
    behaviour, sequence = [-9.0] + [-1.0] * 99, list(range(100))
    proximal = behaviour if loss == "ppo" else None  # its ratio is to the first epoch's policy
    tokens = view([-1.0] * 100, [-1.0] * 100 if loss == "ppo" else behaviour, [-1.0] * 100, sequence, proximal)
    gradient = torch.tensor(loss_of(tokens, PolicyConfig(loss=loss))[2]).abs()
    assert gradient.max() / gradient.sum() < 0.05
    if PUBLISHED[loss].clip_dual:
        gradient = torch.tensor(loss_of(tokens, PolicyConfig(loss=loss, clip_dual=1e6))[2]).abs()
        assert gradient[0] / gradient.sum() == pytest.approx(0.9678, abs=1e-4 if loss != "ppo" else 0.97)


@given(
    st.lists(st.tuples(st.floats(-6.0, -0.01), st.floats(-6.0, -0.01), st.floats(-2.0, 2.0)), min_size=1, max_size=8),
    st.sampled_from(["grpo", "dapo"]),
)
def test_the_dual_clip_is_verls_and_trls(tokens: list[tuple[float, float, float]], loss: str) -> None:
    """verl's ``clip_ratio_c`` in ``compute_policy_loss``; TRL's ``delta`` in ``_compute_loss``. Written down anew."""
    logp, behaviour, advantage = (torch.tensor(each, dtype=torch.float64) for each in zip(*tokens, strict=True))
    ratio, high = (logp - behaviour).exp(), 0.2 if loss == "grpo" else 0.28
    upper = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.0 + high))
    verl = torch.where(advantage < 0, torch.minimum(-advantage * 3.0, upper), upper)
    trl = -torch.minimum(ratio.clamp(max=3.0) * advantage, ratio.clamp(0.8, 1.0 + high) * advantage)
    values, _, _ = loss_of(view(logp.tolist(), behaviour.tolist(), advantage.tolist()), PolicyConfig(loss=loss))
    assert values == pytest.approx(verl.tolist())
    assert values == pytest.approx(trl.tolist())
