from math import log, sqrt

import pytest
import torch
from hypothesis import given, strategies as st

from marlaas.engine.trainer.losses import importance_weights, masked_out
from marlaas.engine.trainer.protocol import PolicyConfig

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


SEQUENCES = [0, 0, 1]
"""The tokens above as two sequences: products 1 and 9, geometric means 1 and 9."""


def weights_of(**settings: object) -> list[float]:
    gradient = loss_of(view(LOGP, BEHAVIOUR, [-1.0] * 3, SEQUENCES), PolicyConfig(**settings))[2]  # type: ignore[arg-type]
    return gradient


def test_weights_of_sequences_by_hand() -> None:
    assert weights_of(importance="sequence_truncate") == pytest.approx([1.0, 1.0, 2.0])
    assert weights_of(importance="sequence_truncate", importance_cap=10.0) == pytest.approx([1.0, 1.0, 9.0])
    assert weights_of(importance="sequence_mask") == pytest.approx([1.0, 1.0, 0.0])
    assert weights_of(importance="geometric_mask") == pytest.approx([2.0, 0.5, 0.0])  # tokens' own, as truncated
    assert weights_of(importance="geometric_mask", geometric_cap=9.5) == pytest.approx([2.0, 0.5, 2.0])


def test_a_geometric_mask_has_a_lower_end_too() -> None:
    unlikely = view([log(0.1)] * 2, [log(0.2), log(0.4)], [1.0] * 2)  # ratios 1/2 and 1/4: a mean of 0.354
    for cap, gradient in ((sqrt(8) - 0.01, [0.0, 0.0]), (sqrt(8) + 0.01, [-0.5, -0.25])):
        config = PolicyConfig(importance="geometric_mask", geometric_cap=cap)
        assert loss_of(unlikely, config)[2] == pytest.approx(gradient)


@given(
    st.lists(st.lists(st.floats(-2.0, 2.0), min_size=1, max_size=4), min_size=1, max_size=4),
    st.sampled_from(["truncate", "sequence_truncate", "sequence_mask", "geometric_mask"]),
)
def test_weights_are_those_of_verl_and_trl(log_ratios: list[list[float]], importance: str) -> None:
    """Their formulas over padded (B, T): verl's ``rollout_corr_helper.py``, TRL's ``vllm_importance_sampling_mode``."""
    cap, geometric = 2.0, 1.5
    mask = torch.zeros(len(log_ratios), 4, dtype=torch.float64)
    padded = torch.zeros_like(mask)
    for row, own in enumerate(log_ratios):
        mask[row, : len(own)], padded[row, : len(own)] = 1.0, torch.tensor(own, dtype=torch.float64)
    product = padded.sum(-1, keepdim=True).clamp(-20.0, 20.0).exp() * torch.ones_like(padded)
    mean = (padded.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True)).exp() * torch.ones_like(padded)
    theirs = {
        "truncate": padded.exp().clamp(max=cap),
        "sequence_truncate": product.clamp(max=cap),
        "sequence_mask": product.masked_fill(product > cap, 0.0),
        "geometric_mask": padded.exp().clamp(max=cap) * ((mean >= 1 / geometric) & (mean <= geometric)),
    }[importance]
    sequence = torch.tensor([row for row, own in enumerate(log_ratios) for _ in own])
    flat = torch.tensor([value for own in log_ratios for value in own], dtype=torch.float64)
    config = PolicyConfig(importance=importance, geometric_cap=geometric)
    weights, changed = importance_weights(flat, torch.zeros_like(flat), sequence, config)
    assert weights.tolist() == pytest.approx(theirs[mask == 1].tolist())
    assert changed[masked_out(flat, torch.zeros_like(flat), sequence, config)].all()
