"""GRPO (arXiv 2402.03300, equation 3) and DAPO (arXiv 2503.14476, equation 8), value by value."""

from math import log

import pytest

from marlaas.engine.training.inputs import PolicyConfig

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


@pytest.mark.parametrize("loss", ["grpo", "dapo"])
def test_on_policy_the_gradient_is_that_of_reinforce(loss: str) -> None:
    assert loss_of(view([-1.0, -2.0], [-1.0, -2.0], [0.5, -0.5]), PolicyConfig(loss=loss))[2] == [-0.5, 0.5]


def test_an_absurd_ratio_stays_finite() -> None:
    values, _, gradient = loss_of(view([-0.1], [-1000.0], [-1.0]), PolicyConfig(loss="grpo"))
    assert values == pytest.approx([485165195.4098]) and gradient == [0.0]  # exp(20)
