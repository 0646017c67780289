"""Every loss by hand, as a derivative, in the mean over a step, and compared with TRL's own code.

``trl_losses.py`` wrote down what TRL computes.

Equal: ``grpo``, ``dapo``, ``cispo``, ``gspo`` and the advantages, in value and gradient, stale or not, with and without
the KL term. Deliberately different, and shown here: ``dr_grpo`` is a policy gradient with truncated weights, TRL's a
clipped ratio, so that the two agree in the gradient of tokens that TRL does not clip; ``reinforce`` weighs token by
token, TRL's RLOO clips the ratio of a whole sequence, so that the two agree where the tokens are fresh. The KL term is
the plain k3, as with TRL's ``use_bias_correction_kl=False``. ``pytest -m slow`` asks TRL itself again.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from math import log, sqrt
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from benchmarks import ROOT
from benchmarks.beside_trl.trl_venv import VENV
from marlaas.engine.spec.losses import PUBLISHED, AdvantageKind, Mean, constant_denominator, published
from marlaas.engine.trainer.advantages import group_advantages
from marlaas.engine.trainer.group_pass import PolicyLoss, divisor
from marlaas.engine.trainer.losses import (
    LOSSES,
    TokenLoss,
    TokenView,
    clip_range,
    importance_weights,
    kl_to_base,
    masked_out,
    token_logprobs,
)
from marlaas.engine.trainer.model import TrainedTokens, trained_tokens_of
from marlaas.engine.trainer.protocol import PolicyConfig, TrainSequence

from ...examples import examples

# probabilities 0.5, 0.2 and 0.9 of tokens sampled at 0.25, 0.4 and 0.1: ratios 2, 1/2 and 9
WEIGHED = [log(0.5), log(0.2), log(0.9)], [log(0.25), log(0.4), log(0.1)], [1.0, -2.0, 0.5]


@pytest.mark.parametrize("loss", ["dr_grpo", "reinforce"])
def test_truncated_weights_by_hand(loss: str) -> None:
    values, clipped, gradient = loss_of(view(*WEIGHED), PolicyConfig(loss=loss))
    # −w·A·log pi with weights 2, 1/2 and 2 (9 is above the cap): −2·log 0.5, 0.5·2·log 0.2, −2·0.5·log 0.9
    assert values == pytest.approx([1.3862943611, -1.6094379124, 0.1053605157])
    assert clipped == [False, False, True]
    assert gradient == pytest.approx([-2.0, 1.0, -1.0])  # −w·A: no gradient through the weights


def test_masked_weights_by_hand() -> None:
    config = PolicyConfig(importance="mask", importance_floor=0.6)
    values, clipped, gradient = loss_of(view(*WEIGHED), config)
    # 1/2 is under the floor, 9 above the cap: neither is trained on; a ratio of 2 is not above a cap of 2
    assert values == pytest.approx([1.3862943611, 0.0, 0.0])
    assert clipped == [False, True, True]
    assert gradient == pytest.approx([-2.0, 0.0, 0.0])


def test_truncation_has_a_floor_too() -> None:
    config = PolicyConfig(importance_floor=0.75)
    assert loss_of(view(*WEIGHED), config)[2] == pytest.approx([-2.0, 1.5, -1.0])


SEQUENCES = [0, 0, 1]
"""The tokens above as two sequences: products 1 and 9, geometric means 1 and 9."""


def weights_of(**settings: object) -> list[float]:
    gradient = loss_of(view(*WEIGHED[:2], [-1.0] * 3, SEQUENCES), PolicyConfig(**settings))[2]  # type: ignore[arg-type]
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


# ratios 1.25, 1.25, 0.75, 0.75 and 1.1, each sampled at 0.4
CLIPPED = [log(0.5), log(0.5), log(0.3), log(0.3), log(0.44)], [log(0.4)] * 5, [2.0, -2.0, 2.0, -2.0, 1.0]


def test_grpo_by_hand() -> None:
    values, clipped, gradient = loss_of(view(*CLIPPED), PolicyConfig(loss="grpo"))
    # clipped to 0.8 … 1.2; the lower of r·A and clip(r)·A: 2.4, −2.5, 1.5, −1.6, 1.1
    assert values == pytest.approx([-2.4, 2.5, -1.5, 1.6, -1.1])
    assert clipped == [True, False, False, True, False]
    # the gradient of −r·A by log pi is −r·A, where the clip does not take it
    assert gradient == pytest.approx([0.0, 2.5, -1.5, 0.0, -1.1])


def test_dapo_clips_higher() -> None:
    values, clipped, gradient = loss_of(view(*CLIPPED), PolicyConfig(loss="dapo"))
    # 1.25 is within 0.8 … 1.28: an unlikely token may become more likely
    assert values == pytest.approx([-2.5, 2.5, -1.5, 1.6, -1.1])
    assert clipped == [False, False, False, True, False]
    assert gradient == pytest.approx([-2.5, 2.5, -1.5, 0.0, -1.1])


def test_masked_tokens_are_not_trained_on() -> None:
    config = PolicyConfig(loss="dapo", importance="mask", importance_cap=1.2, importance_floor=0.5)
    values, clipped, gradient = loss_of(view(*CLIPPED), config)
    assert values == pytest.approx([0.0, 0.0, -1.5, 1.6, -1.1])
    assert clipped == [True, True, False, True, False]
    assert gradient == pytest.approx([0.0, 0.0, -1.5, 0.0, -1.1])


@pytest.mark.parametrize("importance", ["truncate", "none"])
def test_a_ratio_that_corrects_takes_no_further_weight(importance: str) -> None:
    config = PolicyConfig(loss="grpo", importance=importance, importance_cap=1.01)
    assert loss_of(view(*CLIPPED), config)[0] == pytest.approx([-2.4, 2.5, -1.5, 1.6, -1.1])


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


# ratios 9, 2 and 1/4
CAPPED = [log(0.9), log(0.6), log(0.1)], [log(0.1), log(0.3), log(0.4)], [1.0, -1.0, 2.0]


def test_cispo_by_hand() -> None:
    values, clipped, gradient = loss_of(view(*CAPPED), PolicyConfig(loss="cispo"))
    # weights 5 (1 + 4), 2 and 1/4: −5·log 0.9, 2·log 0.6, −0.5·log 0.1
    assert values == pytest.approx([0.5268025783, -1.0216512475, 1.1512925465])
    assert clipped == [True, False, False]
    assert gradient == pytest.approx([-5.0, 2.0, -0.5])  # a clipped token keeps its gradient


WIDE = PolicyConfig(loss="gspo", clip_low=0.5, clip_high=1.5, clip_dual=10.0)

# token ratios 2 and 8 in the first sequence, 1/2 alone in the second
LOGP_GSPO, BEHAVIOUR_GSPO = [log(0.2), log(0.8), log(0.2)], [log(0.1), log(0.1), log(0.4)]
SEQUENCE = [0, 0, 1]


def test_gspo_by_hand() -> None:
    values, clipped, gradient = loss_of(view(LOGP_GSPO, BEHAVIOUR_GSPO, [1.0, 1.0, 3.0], SEQUENCE), WIDE)
    # s = sqrt(2·8) = 4, clipped to 2.5 at each token of its sequence; s = 1/2 is the lower end itself
    assert values == pytest.approx([-2.5, -2.5, -1.5])
    assert clipped == [True, True, False]
    assert gradient[:2] == [0.0, 0.0]


def test_a_token_pulls_at_its_whole_sequence() -> None:
    values, clipped, gradient = loss_of(view(LOGP_GSPO, BEHAVIOUR_GSPO, [-1.0, -1.0, 3.0], SEQUENCE), WIDE)
    # a bad sequence is not clipped from above: −min(4·−1, 2.5·−1) = 4 at each of two tokens. By one token's log pi, s
    # grows by s/2; two tokens show it: 2 · 4/2 = 4
    assert values == pytest.approx([4.0, 4.0, -1.5])
    assert clipped == [False, False, False]
    assert gradient[:2] == pytest.approx([4.0, 4.0])


def test_turns_of_a_sequence_pull_with_their_own_advantage() -> None:
    """GSPO-token (section 4.3): s = 4 is common to both tokens; each has the gradient −s · A of its own, or none."""
    values, clipped, gradient = loss_of(view(LOGP_GSPO, BEHAVIOUR_GSPO, [-1.0, -0.5, 3.0], SEQUENCE), WIDE)
    assert values == pytest.approx([4.0, 2.0, -1.5])
    assert clipped == [False] * 3 and gradient == pytest.approx([4.0, 2.0, -1.5], abs=1e-9)
    _, clipped, gradient = loss_of(view(LOGP_GSPO, BEHAVIOUR_GSPO, [-1.0, 0.5, 0.0], SEQUENCE), WIDE)
    assert clipped == [False, True, False] and gradient == pytest.approx([4.0, 0.0, 0.0])


# probabilities: now, before the step's first update, when sampled
#   u = pi/pi_proximal: 1.25, 0.75, 1.25     w = pi_proximal/pi_behaviour: 4, 0.5, 0.8
LOGP_PPO, PROXIMAL, BEFORE_PPO = [0.5, 0.3, 0.5], [0.4, 0.4, 0.4], [0.1, 0.8, 0.5]
ADVANTAGE_PPO = [1.0, -1.0, -1.0]


def logs(probabilities: list[float]) -> list[float]:
    return [log(p) for p in probabilities]


def test_later_epochs_clip_around_the_proximal_policy() -> None:
    tokens = view(logs(LOGP_PPO), logs(BEFORE_PPO), ADVANTAGE_PPO, proximal=logs(PROXIMAL))
    values, clipped, gradient = loss_of(tokens, PolicyConfig(loss="ppo"))
    # −w·min(u·A, clip(u)·A): the weight 4 is truncated to 2: −2·1.2; −0.5·−0.8; −0.8·−1.25
    assert values == pytest.approx([-2.4, 0.4, 1.0])
    assert clipped == [True, True, False]
    assert gradient == pytest.approx([0.0, 0.0, 1.0])


def test_in_the_first_epoch_it_is_a_weighted_policy_gradient() -> None:
    tokens = view(logs(PROXIMAL), logs(BEFORE_PPO), ADVANTAGE_PPO)
    values, clipped, gradient = loss_of(tokens, PolicyConfig(loss="ppo"))
    assert values == pytest.approx([-2.0, 0.5, 0.8])  # −w·A with weights 2, 0.5 and 0.8
    assert clipped == [True, False, False]
    assert gradient == pytest.approx([-2.0, 0.5, 0.8])


def test_masked_weights_leave_the_token_out() -> None:
    tokens = view(logs(LOGP_PPO), logs(BEFORE_PPO), ADVANTAGE_PPO, proximal=logs(PROXIMAL))
    config = PolicyConfig(loss="ppo", importance="mask", importance_cap=2.0, importance_floor=0.6)
    values, clipped, gradient = loss_of(tokens, config)
    assert values == pytest.approx([0.0, 0.0, 1.0]) and gradient == pytest.approx([0.0, 0.0, 1.0])
    assert clipped == [True, True, False]


STEP = 1e-6
LOGPROBS = st.floats(-4.0, -0.01)

TOKENS = st.lists(
    st.tuples(LOGPROBS, st.floats(-0.9, 0.9), st.floats(-0.9, 0.9), st.floats(-2.0, 2.0), st.booleans()),
    min_size=1,
    max_size=6,
)

HELD_CONSTANT = ("dr_grpo", "reinforce", "sft", "dpo", "distill", "cispo")
"""Losses whose weights carry no gradient: it is not the derivative of their value."""

WIDE_GSPO = PolicyConfig(loss="gspo", clip_low=0.3, clip_high=0.4)
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
@settings(max_examples=examples(10))
@given(tokens=TOKENS)
def test_the_gradient_is_the_derivative(name: str, tokens: list[tuple[float, float, float, float, bool]]) -> None:
    """Of ``gspo`` where the tokens of a sequence have one advantage; else see the turns of a sequence below."""
    config = WIDE_GSPO if name == "gspo" else PolicyConfig(loss=name)
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
@settings(max_examples=examples(10))
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
    with pytest.raises(
        ValueError, match="no loss named 'grop'; there are: cispo, dapo, distill, dpo, dr_grpo, grpo, gspo, ppo"
    ):
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


def test_k3_by_hand() -> None:
    logp = torch.tensor([log(0.5), log(0.5), log(0.1)])
    base = torch.tensor([log(0.5), log(0.25), log(0.2)])
    expected = [0.0, 0.5 - log(0.5) - 1, 2.0 - log(2.0) - 1]
    assert kl_to_base(logp, base).tolist() == pytest.approx(expected, abs=1e-6)


def test_log_probabilities_and_entropy_of_two_equal_logits() -> None:
    logp, entropy = token_logprobs(torch.tensor([[3.0, 3.0]]), torch.tensor([1]), 1.0)
    assert logp.item() == pytest.approx(-log(2))
    assert entropy.item() == pytest.approx(log(2))


def test_the_temperature_divides_the_logits() -> None:
    logits = torch.tensor([[0.0, 2 * log(3)]])
    logp, entropy = token_logprobs(logits, torch.tensor([1]), 2.0)  # probabilities 1/4 and 3/4
    assert logp.item() == pytest.approx(log(0.75))
    assert entropy.item() == pytest.approx(-0.25 * log(0.25) - 0.75 * log(0.75))


def test_an_impossible_token_adds_no_entropy() -> None:
    _, entropy = token_logprobs(torch.tensor([[0.0, -torch.inf]]), torch.tensor([0]), 1.0)
    assert entropy.item() == 0.0


FIXTURE = Path(__file__).with_name("trl_losses.json")
REFERENCE: dict[str, Any] = json.loads(FIXTURE.read_text(encoding="utf-8"))
GIVEN = {name: np.array(value) for name, value in REFERENCE["inputs"].items()}
TRAINED = GIVEN["mask"] == 1
EQUAL = [case for case in REFERENCE["cases"] if case["name"] not in ("dr_grpo", "reinforce")]


def case_of(name: str, stale: bool) -> dict[str, Any]:
    (found,) = (c for c in REFERENCE["cases"] if (c["name"], c["stale"], c["kl"]) == (name, stale, 0.0))
    return dict(found)


def ours(name: str, stale: bool, kl: float = 0.0) -> tuple[float, np.ndarray[Any, Any]]:
    """The step's loss and its gradient by the trained tokens' log-probabilities, (N,)."""
    lengths = TRAINED.sum(1)
    trained = TrainedTokens(
        targets=np.zeros(TRAINED.sum(), np.int64),
        behaviour=GIVEN["behaviour" if stale else "logp"][TRAINED],
        advantage=np.repeat(GIVEN[published(name).advantage], lengths),
        sequence=np.repeat(np.arange(len(lengths)), lengths),
        share=np.repeat(1.0 / lengths, lengths),
    )
    config = PolicyConfig(loss=name, kl=kl, denominator=constant_denominator(name, len(lengths), REFERENCE["longest"]))
    loss, logp = PolicyLoss(config), torch.from_numpy(GIVEN["logp"][TRAINED])
    base = torch.from_numpy(GIVEN["base"][TRAINED]) if kl else None
    gradient = loss.gradient(trained, base, logp, torch.zeros_like(logp)).logp
    shared = divisor(config, int(TRAINED.sum()))
    return loss.loss / shared, gradient.numpy() / shared


@pytest.mark.parametrize("case", EQUAL, ids=lambda case: f"{case['name']}, stale {case['stale']}, KL {case['kl']}")
def test_value_and_gradient_are_trls(case: dict[str, Any]) -> None:
    loss, gradient = ours(case["name"], case["stale"], case["kl"])
    assert loss == pytest.approx(case["loss"], rel=1e-9, abs=1e-12)
    assert gradient == pytest.approx(np.array(case["gradient"])[TRAINED], rel=1e-9, abs=1e-12)


def test_the_reference_has_something_to_clip() -> None:
    for name in ("grpo", "dapo", "gspo"):
        fresh, stale = (np.array(case_of(name, way)["gradient"])[TRAINED] == 0 for way in (False, True))
        assert fresh.sum() == 0 < stale.sum() < len(stale)


@pytest.mark.parametrize("kind", ["mean", "standard", "leave_one_out"])
def test_advantages_are_trls(kind: AdvantageKind) -> None:
    groups = GIVEN["rewards"].reshape(-1, REFERENCE["group"])
    assert np.concatenate([group_advantages(list(g), kind) for g in groups]) == pytest.approx(GIVEN[kind], abs=1e-12)


@pytest.mark.slow
@pytest.mark.skipif(not (VENV / "bin" / "python").exists(), reason="TRL's environment is made by `make bench`")
def test_trl_still_says_so(tmp_path: Path) -> None:
    made = tmp_path / "made.json"
    command = [str(VENV / "bin" / "python"), str(ROOT / REFERENCE["script"]), str(made)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)
    assert made.read_text(encoding="utf-8") == FIXTURE.read_text(encoding="utf-8")


SAMPLED_AT = -1.0
EPISODES, LONGEST = 2, 8


def sequence(count: int, advantage: float, episode_tokens: int = 0) -> TrainSequence:
    """A prompt token and ``count`` trained ones, sampled by the policy itself."""
    mask = np.array([0] + [1] * count, np.uint8)
    return TrainSequence(np.zeros(count + 1, np.int32), mask, mask * np.float32(SAMPLED_AT), advantage, episode_tokens)


def gradients(loss: str, batches: list[list[TrainSequence]], kl: float = 0.0) -> tuple[list[float], PolicyLoss, float]:
    """The divided gradient of every token of a step of two episodes, its sums, and what it was divided by."""
    config = PolicyConfig(loss=loss, kl=kl, denominator=constant_denominator(loss, EPISODES, LONGEST))
    policy, found = PolicyLoss(config), []
    for sequences in batches:
        trained = trained_tokens_of(sequences)
        logp = torch.full((len(trained.targets),), SAMPLED_AT)
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
    policy, logp, entropy = (
        PolicyLoss(config, config.entropy),
        torch.full((4,), SAMPLED_AT),
        torch.tensor([1.0, 2.0, 3.0, 4.0]),
    )
    slopes = policy.gradient(trained, None, logp, entropy)
    shared = divisor(config, policy.measured)
    weights = {"constant": [1 / 16] * 4, "episode": [1 / 2] * 4, "token": [1 / 4] * 4, "pair": [1.0] * 4}
    expected = [0.3 * w for w in weights.get(PUBLISHED[loss].mean, [1 / 2, 1 / 6, 1 / 6, 1 / 6])]
    assert slopes.entropy is not None and not slopes.logp.any()
    assert (slopes.entropy / shared).tolist() == pytest.approx([-weight for weight in expected])
    assert policy.loss / shared == pytest.approx(
        -sum(w * h for w, h in zip(expected, (1.0, 2.0, 3.0, 4.0), strict=True))
    )
    plain = PolicyLoss(PolicyConfig(loss=loss)).gradient(trained, None, logp.detach(), entropy)
    assert plain.entropy is None


def view(
    logp: Sequence[float],
    behaviour: Sequence[float],
    advantage: Sequence[float],
    sequence: Sequence[int] | None = None,
    proximal: Sequence[float] | None = None,
) -> TokenView:
    """Tokens of one sequence, unless told otherwise; float64, so that finite differences mean something."""
    return TokenView(
        torch.tensor(logp, dtype=torch.float64, requires_grad=True),
        torch.tensor(behaviour, dtype=torch.float64),
        torch.tensor(advantage, dtype=torch.float64),
        torch.tensor(sequence or [0] * len(logp)),
        None if proximal is None else torch.tensor(proximal, dtype=torch.float64),
    )


def loss_of(tokens: TokenView, config: PolicyConfig) -> tuple[list[float], list[bool], list[float]]:
    """Values, clipped tokens and the gradient of the values' sum by ``logp``."""
    terms: TokenLoss = LOSSES[config.loss](tokens, config)
    (gradient,) = torch.autograd.grad(terms.values.sum(), tokens.logp)
    return terms.values.tolist(), terms.clipped.tolist(), gradient.tolist()
