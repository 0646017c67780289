from math import log

import pytest

from marlaas.engine.training.inputs import PolicyConfig

from .views import loss_of, view

# probabilities 0.5, 0.2 and 0.9 of tokens sampled at 0.25, 0.4 and 0.1: ratios 2, 1/2 and 9
LOGP, BEHAVIOUR = [log(0.5), log(0.2), log(0.9)], [log(0.25), log(0.4), log(0.1)]
ADVANTAGE = [1.0, -2.0, 0.5]


@pytest.mark.parametrize("loss", ["dr_grpo", "reinforce"])
def test_truncated_weights_by_hand(loss: str) -> None:
    values, clipped, gradient = loss_of(view(LOGP, BEHAVIOUR, ADVANTAGE), PolicyConfig(loss=loss))
    # −w·A·log pi with weights 2, 1/2 and 2 (9 is above the cap): −2·log 0.5, 0.5·2·log 0.2, −2·0.5·log 0.9
    assert values == pytest.approx([1.3862943611, -1.6094379124, 0.1053605157])
    assert clipped == [False, False, True]
    assert gradient == pytest.approx([-2.0, 1.0, -1.0])  # −w·A: no gradient through the weights


def test_masked_weights_by_hand() -> None:
    config = PolicyConfig(importance="mask", importance_floor=0.6)
    values, clipped, gradient = loss_of(view(LOGP, BEHAVIOUR, ADVANTAGE), config)
    # 1/2 is under the floor, 9 above the cap: neither is trained on; a ratio of 2 is not above a cap of 2
    assert values == pytest.approx([1.3862943611, 0.0, 0.0])
    assert clipped == [False, True, True]
    assert gradient == pytest.approx([-2.0, 0.0, 0.0])


def test_truncation_has_a_floor_too() -> None:
    config = PolicyConfig(importance_floor=0.75)
    assert loss_of(view(LOGP, BEHAVIOUR, ADVANTAGE), config)[2] == pytest.approx([-2.0, 1.5, -1.0])


def test_without_weights_it_is_reinforce() -> None:
    values, clipped, gradient = loss_of(view(LOGP, BEHAVIOUR, ADVANTAGE), PolicyConfig(importance="none"))
    assert values == pytest.approx([0.6931471806, -3.2188758249, 0.0526802578])
    assert not any(clipped)
    assert gradient == pytest.approx([-1.0, 2.0, -0.5])


def test_on_policy_the_gradient_is_that_of_reinforce() -> None:
    assert loss_of(view([-1.0, -2.0], [-1.0, -2.0], [0.5, -0.5]), PolicyConfig())[2] == pytest.approx([-0.5, 0.5])
