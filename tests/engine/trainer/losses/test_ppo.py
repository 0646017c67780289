"""Decoupled PPO (AReaL, arXiv 2505.24298, equation 5)."""

from math import log

import pytest

from marlaas.engine.trainer.protocol import PolicyConfig

from .views import loss_of, view

# probabilities: now, before the step's first update, when sampled
#   u = pi/pi_proximal: 1.25, 0.75, 1.25     w = pi_proximal/pi_behaviour: 4, 0.5, 0.8
LOGP, PROXIMAL, BEHAVIOUR = [0.5, 0.3, 0.5], [0.4, 0.4, 0.4], [0.1, 0.8, 0.5]
ADVANTAGE = [1.0, -1.0, -1.0]


def logs(probabilities: list[float]) -> list[float]:
    return [log(p) for p in probabilities]


def test_later_epochs_clip_around_the_proximal_policy() -> None:
    tokens = view(logs(LOGP), logs(BEHAVIOUR), ADVANTAGE, proximal=logs(PROXIMAL))
    values, clipped, gradient = loss_of(tokens, PolicyConfig(loss="ppo"))
    # −w·min(u·A, clip(u)·A): the weight 4 is truncated to 2: −2·1.2; −0.5·−0.8; −0.8·−1.25
    assert values == pytest.approx([-2.4, 0.4, 1.0])
    assert clipped == [True, True, False]
    assert gradient == pytest.approx([0.0, 0.0, 1.0])


def test_in_the_first_epoch_it_is_a_weighted_policy_gradient() -> None:
    tokens = view(logs(PROXIMAL), logs(BEHAVIOUR), ADVANTAGE)
    values, clipped, gradient = loss_of(tokens, PolicyConfig(loss="ppo"))
    assert values == pytest.approx([-2.0, 0.5, 0.8])  # −w·A with weights 2, 0.5 and 0.8
    assert clipped == [True, False, False]
    assert gradient == pytest.approx([-2.0, 0.5, 0.8])


def test_masked_weights_leave_the_token_out() -> None:
    tokens = view(logs(LOGP), logs(BEHAVIOUR), ADVANTAGE, proximal=logs(PROXIMAL))
    config = PolicyConfig(loss="ppo", importance="mask", importance_cap=2.0, importance_floor=0.6)
    values, clipped, gradient = loss_of(tokens, config)
    assert values == pytest.approx([0.0, 0.0, 1.0]) and gradient == pytest.approx([0.0, 0.0, 1.0])
    assert clipped == [True, True, False]


def test_without_weights_it_is_ppo() -> None:
    tokens = view(logs(LOGP), logs(BEHAVIOUR), ADVANTAGE, proximal=logs(PROXIMAL))
    assert loss_of(tokens, PolicyConfig(loss="ppo", importance="none"))[0] == pytest.approx([-1.2, 0.8, 1.25])
