"""What holds for all losses: gradients are derivatives, and on-policy they are those of the plain policy gradient."""

from dataclasses import replace
from typing import get_args

import pytest
import torch
from hypothesis import given, strategies as st

from marlaas.engine.spec.losses import PUBLISHED, AdvantageKind, Mean, constant_denominator, published
from marlaas.engine.trainer.losses import LOSSES, TokenView, clip_range, kl_to_base
from marlaas.engine.trainer.protocol import PolicyConfig

from .views import loss_of, view

STEP = 1e-6
LOGPROBS = st.floats(-4.0, -0.01)
TOKENS = st.lists(
    st.tuples(LOGPROBS, st.floats(-0.9, 0.9), st.floats(-0.9, 0.9), st.floats(-2.0, 2.0), st.booleans()),
    min_size=1,
    max_size=6,
)
HELD_CONSTANT = ("dr_grpo", "reinforce", "cispo")
"""Losses whose weights carry no gradient: it is not the derivative of their value."""
WIDE = PolicyConfig(loss="gspo", clip_low=0.3, clip_high=0.4)
"""GSPO's own range is so narrow that nearly every sequence would be clipped."""


def drawn(tokens: list[tuple[float, float, float, float, bool]]) -> TokenView:
    """Each token near the proximal and the behaviour policy; True begins a further sequence."""
    logp = [own[0] for own in tokens]
    sequence = [sum(own[4] for own in tokens[1 : place + 1]) for place in range(len(tokens))]
    return view(
        logp,
        [p + own[1] for p, own in zip(logp, tokens, strict=True)],
        [own[3] for own in tokens],
        sequence,
        [p + own[2] for p, own in zip(logp, tokens, strict=True)],
    )


@pytest.mark.parametrize("name", [name for name in LOSSES if name not in HELD_CONSTANT])
@given(tokens=TOKENS)
def test_the_gradient_is_the_derivative(name: str, tokens: list[tuple[float, float, float, float, bool]]) -> None:
    """Of ``gspo`` where the tokens of a sequence have one advantage; else see ``test_gspo``."""
    config = WIDE if name == "gspo" else PolicyConfig(loss=name)
    whole = drawn(tokens)
    if name == "gspo":
        first = torch.searchsorted(whole.sequence, whole.sequence)
        whole = replace(whole, advantage=whole.advantage[first])
    _, _, gradient = loss_of(whole, config)

    def total(place: int, way: float) -> float:
        moved = whole.logp.detach().clone()
        moved[place] += way
        view = TokenView(moved, whole.behaviour, whole.advantage, whole.sequence, whole.proximal)
        return LOSSES[name](view, config).values.sum().item()

    for place in range(len(tokens)):
        before, here, after = (total(place, way) for way in (-STEP, 0.0, STEP))
        if abs(after - 2 * here + before) / STEP < 1e-4:  # else a clip begins just here, and there is no derivative
            assert gradient[place] == pytest.approx((after - before) / (2 * STEP), abs=1e-4)


@pytest.mark.parametrize("name", LOSSES)
@given(tokens=TOKENS)
def test_on_policy_every_gradient_is_that_of_reinforce(
    name: str, tokens: list[tuple[float, float, float, float, bool]]
) -> None:
    """−A at each token; for whole sequences, whose ratio all tokens share, −A as well where they share A."""
    own = drawn([(logp, 0.0, 0.0, 0.5, further) for logp, _, _, _, further in tokens])
    values, clipped, gradient = loss_of(own, PolicyConfig(loss=name))
    assert gradient == pytest.approx([-0.5] * len(tokens)) and not any(clipped)
    assert len(values) == len(clipped) == len(tokens)


def test_the_divergence_has_the_derivative_it_should() -> None:
    logp = torch.tensor([-1.0, -0.5, -3.0], dtype=torch.float64, requires_grad=True)
    base = torch.tensor([-1.0, -2.0, -0.5], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda p: kl_to_base(p, base).sum(), logp)


def test_every_loss_is_published_and_computed() -> None:
    assert LOSSES.keys() == PUBLISHED.keys()
    for loss in PUBLISHED.values():
        assert loss.mean in get_args(Mean) and loss.advantage in get_args(AdvantageKind)
    with pytest.raises(ValueError, match="no loss named 'grop'; there are: cispo, dapo, dr_grpo, grpo, gspo, ppo"):
        published("grop")


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("grpo", 0.8, 1.2),
        ("dapo", 0.8, 1.28),
        ("gspo", 0.9997, 1.0004),
        ("ppo", 0.8, 1.2),
        ("cispo", 0.0, 5.0),
        ("dr_grpo", 0.0, float("inf")),
    ],
)
def test_absent_clip_ranges_are_the_published_ones(name: str, low: float, high: float) -> None:
    assert clip_range(PolicyConfig(loss=name)) == pytest.approx((low, high))


@pytest.mark.parametrize(
    ("name", "expected"), [("dr_grpo", 64 * 256), ("reinforce", 64), ("grpo", 64), ("gspo", 64), ("dapo", 1)]
)
def test_the_constant_part_of_the_divisor(name: str, expected: float) -> None:
    assert constant_denominator(name, episodes=64, tokens=256) == expected
