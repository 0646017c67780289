"""GSPO (arXiv 2507.18071, equations 5 to 7)."""

from math import log, sqrt

import pytest
import torch

from marlaas.engine.trainer.losses import sequence_means
from marlaas.engine.trainer.protocol import PolicyConfig

from .views import loss_of, view

WIDE = PolicyConfig(loss="gspo", clip_low=0.5, clip_high=1.5, clip_dual=10.0)
# token ratios 2 and 8 in the first sequence, 1/2 alone in the second
LOGP, BEHAVIOUR = [log(0.2), log(0.8), log(0.2)], [log(0.1), log(0.1), log(0.4)]
SEQUENCE = [0, 0, 1]


def test_gspo_by_hand() -> None:
    values, clipped, gradient = loss_of(view(LOGP, BEHAVIOUR, [1.0, 1.0, 3.0], SEQUENCE), WIDE)
    # s = sqrt(2·8) = 4, clipped to 2.5 at each token of its sequence; s = 1/2 is the lower end itself
    assert values == pytest.approx([-2.5, -2.5, -1.5])
    assert clipped == [True, True, False]
    assert gradient[:2] == [0.0, 0.0]


def test_a_token_pulls_at_its_whole_sequence() -> None:
    values, clipped, gradient = loss_of(view(LOGP, BEHAVIOUR, [-1.0, -1.0, 3.0], SEQUENCE), WIDE)
    # a bad sequence is not clipped from above: −min(4·−1, 2.5·−1) = 4 at each of two tokens. By one token's log pi, s
    # grows by s/2; two tokens show it: 2 · 4/2 = 4
    assert values == pytest.approx([4.0, 4.0, -1.5])
    assert clipped == [False, False, False]
    assert gradient[:2] == pytest.approx([4.0, 4.0])


def test_turns_of_a_sequence_pull_with_their_own_advantage() -> None:
    """GSPO-token (section 4.3): s = 4 is common to both tokens; each has the gradient −s · A of its own, or none."""
    values, clipped, gradient = loss_of(view(LOGP, BEHAVIOUR, [-1.0, -0.5, 3.0], SEQUENCE), WIDE)
    assert values == pytest.approx([4.0, 2.0, -1.5])
    assert clipped == [False] * 3 and gradient == pytest.approx([4.0, 2.0, -1.5], abs=1e-9)
    _, clipped, gradient = loss_of(view(LOGP, BEHAVIOUR, [-1.0, 0.5, 0.0], SEQUENCE), WIDE)
    assert clipped == [False, True, False] and gradient == pytest.approx([4.0, 0.0, 0.0])


def test_the_published_range_is_narrow() -> None:
    # mean log ratios of 3.5e-4 and 4.5e-4: s is 1.00035 and 1.00045, the range ends at 1.0004
    tokens = view([-1.0, -1.0], [-1.0 - 3.5e-4, -1.0 - 4.5e-4], [1.0, 1.0], [0, 1])
    values, clipped, _ = loss_of(tokens, PolicyConfig(loss="gspo"))
    assert values == pytest.approx([-1.000350061, -1.0004], abs=1e-8)
    assert clipped == [False, True]


def test_the_ratio_is_a_geometric_mean_whatever_the_length() -> None:
    values, _, _ = loss_of(view([log(0.2)] * 7, [log(0.2 / sqrt(2))] * 7, [1.0] * 7), WIDE)
    assert values == pytest.approx([-sqrt(2)] * 7)


def test_means_over_sequences() -> None:
    assert sequence_means(torch.tensor([1.0, 3.0, 5.0]), torch.tensor(SEQUENCE)).tolist() == [2.0, 5.0]
