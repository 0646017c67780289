"""CISPO (MiniMax-M1, arXiv 2506.13585, equations 4 and 5)."""

from math import log

import pytest

from marlaas.engine.trainer.protocol import PolicyConfig

from .views import loss_of, view

# ratios 9, 2 and 1/4
LOGP, BEHAVIOUR = [log(0.9), log(0.6), log(0.1)], [log(0.1), log(0.3), log(0.4)]
ADVANTAGE = [1.0, -1.0, 2.0]


def test_cispo_by_hand() -> None:
    values, clipped, gradient = loss_of(view(LOGP, BEHAVIOUR, ADVANTAGE), PolicyConfig(loss="cispo"))
    # weights 5 (1 + 4), 2 and 1/4: −5·log 0.9, 2·log 0.6, −0.5·log 0.1
    assert values == pytest.approx([0.5268025783, -1.0216512475, 1.1512925465])
    assert clipped == [True, False, False]
    assert gradient == pytest.approx([-5.0, 2.0, -0.5])  # a clipped token keeps its gradient


def test_the_bound_is_one_plus_clip_high() -> None:
    config = PolicyConfig(loss="cispo", clip_high=0.5)
    _, clipped, gradient = loss_of(view(LOGP, BEHAVIOUR, ADVANTAGE), config)
    assert clipped == [True, True, False]
    assert gradient == pytest.approx([-1.5, 1.5, -0.5])


def test_cispo_leaves_masked_tokens_out() -> None:
    config = PolicyConfig(loss="cispo", importance="mask", importance_cap=8.0, importance_floor=0.5)
    _, clipped, gradient = loss_of(view(LOGP, BEHAVIOUR, ADVANTAGE), config)
    assert clipped == [True, False, True]
    assert gradient == pytest.approx([0.0, 2.0, 0.0])
