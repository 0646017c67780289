"""The losses: each computes a value for every trained token from its log-probabilities and its advantage.

``LOSSES`` has them by their names in task files. Tensors are (N,), a value for each trained token of a batch, unless
noted.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from ..spec.losses import DISTILL, DPO, SFT, published
from .protocol import PolicyConfig


@dataclass(frozen=True)
class TokenView:
    """N trained tokens of one batch, of whole sequences."""

    logp: Tensor
    """float32 (N,): log-probabilities by the policy being trained, with a gradient."""
    behaviour: Tensor
    """float32 (N,): log-probabilities by the policy that sampled; of demonstrations by the one being trained, so that
    ratios are 1."""
    advantage: Tensor
    """float32 (N,): that of each token's turn, or of its whole sequence."""
    sequence: Tensor
    """int64 (N,): the sequence's number in the batch, ascending from 0."""
    proximal: Tensor | None = None
    """float32 (N,): log-probabilities before the step's first update; None in the first pass: ``logp``."""


@dataclass(frozen=True)
class TokenLoss:
    """A value for each token; ``PolicyLoss`` takes the mean that the loss asks for."""

    values: Tensor
    """float32 (N,), with a gradient by ``TokenView.logp``."""
    clipped: Tensor
    """bool (N,): True if a weight was truncated, or a ratio clipped so that the token has no gradient."""


Loss = Callable[[TokenView, PolicyConfig], TokenLoss]


def token_logprobs(logits: Tensor, targets: Tensor, temperature: float, bonus: bool = False) -> tuple[Tensor, Tensor]:
    """Log-probabilities of ``targets`` and entropies (nats), each (N,), of softmax(logits / temperature).

    ``logits`` is (N, V), ``targets`` int64 (N,). The sampler draws from the same distribution. The entropies have a
    gradient only with a ``bonus``.
    """
    if temperature != 1.0:
        logits = logits / temperature
    logprobs = torch.log_softmax(logits, dim=-1)  # (N, V)
    with nullcontext() if bonus else torch.no_grad():
        entropy = -(logprobs.exp() * logprobs.clamp(min=-1e30)).sum(-1)  # the clamp: 0 · -inf is 0 here
    return logprobs.gather(-1, targets[:, None])[:, 0], entropy


LOG_RATIO_LIMIT = 20.0
"""Largest absolute log-ratio, so that one extreme token cannot make the loss NaN (as in verl)."""


def ratio(logp: Tensor, old: Tensor) -> Tensor:
    """pi / pi_old, with the gradient of ``logp``."""
    return (logp - old).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def importance_weights(
    logp: Tensor, behaviour: Tensor, sequence: Tensor, config: PolicyConfig
) -> tuple[Tensor, Tensor]:
    """Detached weights pi / pi_behaviour, and which of them were changed (bool).

    - ``truncate``: each token's ratio, moved to the nearer of floor and cap (truncated importance sampling, TIS; verl's
      ``rollout_is: token``, TRL's ``token_truncate``).
    - ``mask``: the token's ratio, or 0 beyond floor and cap (IcePop, as in INTELLECT-3; TRL's ``token_mask``).
    - ``sequence_truncate``: the product of the sequence's ratios, moved to the nearer of floor and cap (verl's
      ``rollout_is: sequence``, TRL's mode of that name).
    - ``sequence_mask``: that product, or 0 beyond floor and cap (TRL's mode of that name).
    - ``geometric_mask``: as ``truncate``, but 0 in sequences whose geometric mean is beyond ``geometric_cap`` (verl's
      ``rollout_rs: geometric`` with ``rollout_is: token``; Liu and Li 2025, "When Speed Kills Stability").
    - ``none``: 1.
    """
    log_ratios = logp.detach() - behaviour
    if config.importance == "none":
        return torch.ones_like(log_ratios), torch.zeros_like(log_ratios, dtype=torch.bool)
    if config.importance.startswith("sequence"):
        log_ratios = sequence_sums(log_ratios, sequence)[sequence]
    ratios = log_ratios.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    left_out = masked_out(logp, behaviour, sequence, config)
    weights = ratios.clamp(config.importance_floor, config.importance_cap).masked_fill(left_out, 0.0)
    return weights, _beyond(ratios, config.importance_floor, config.importance_cap) | left_out


def masked_out(logp: Tensor, behaviour: Tensor, sequence: Tensor, config: PolicyConfig) -> Tensor:
    """The tokens that ``importance`` leaves out of the loss (bool)."""
    log_ratios, low, high = logp.detach() - behaviour, config.importance_floor, config.importance_cap
    if config.importance == "sequence_mask":
        log_ratios = sequence_sums(log_ratios, sequence)[sequence]
    elif config.importance == "geometric_mask":
        low, high = 1.0 / config.geometric_cap, config.geometric_cap
        log_ratios = sequence_means(log_ratios, sequence)[sequence]
    elif config.importance != "mask":
        return torch.zeros_like(log_ratios, dtype=torch.bool)
    return _beyond(log_ratios.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp(), low, high)


def sequence_sums(values: Tensor, sequence: Tensor) -> Tensor:
    """The sum of ``values`` (N,) over each of S sequences, (S,)."""
    return values.new_zeros(int(sequence[-1]) + 1).index_add(0, sequence, values)


def sequence_means(values: Tensor, sequence: Tensor) -> Tensor:
    """The mean of ``values`` (N,) over each of S sequences, (S,)."""
    return sequence_sums(values, sequence) / torch.bincount(sequence)


def clip_range(config: PolicyConfig) -> tuple[float, float]:
    """The lowest and highest ratio: as configured, else the loss's published values."""
    usual = published(config.loss)
    low = config.clip_low if config.clip_low is not None else usual.clip_low
    high = config.clip_high if config.clip_high is not None else usual.clip_high
    return (0.0 if low is None else 1.0 - low), (float("inf") if high is None else 1.0 + high)


def clipped_objective(ratios: Tensor, advantage: Tensor, config: PolicyConfig) -> tuple[Tensor, Tensor]:
    """−min(r·A, clip(r)·A), and where clipping removes the gradient (PPO, arXiv 1707.06347, equation 7).

    If A < 0, that minimum has no lower bound: a token that is unlikely for the sampler but not for the trainer takes
    the whole gradient. So it is at least c·A (dual clip: Ye et al., arXiv 1912.09729; ``clip_ratio_c`` in verl).
    """
    dual = config.clip_dual if config.clip_dual is not None else published(config.loss).clip_dual
    plain, bounded = ratios * advantage, ratios.clamp(*clip_range(config)) * advantage
    objective, least = torch.minimum(plain, bounded), advantage * (dual or float("inf"))
    too_low = (advantage < 0.0) & (objective < least)
    return -torch.where(too_low, least, objective), (bounded < plain) | too_low


def _beyond(ratios: Tensor, low: float, high: float) -> Tensor:
    return (ratios < low) | (ratios > high)


def kl_to_base(logp: Tensor, base_logp: Tensor) -> Tensor:
    """k3, (N,): exp(d) − d − 1 with d = log pi_base − log pi; not negative, and unbiased if pi itself sampled.

    Schulman 2020, "Approximating KL divergence"; used so by GRPO (arXiv 2402.03300, equation 4).
    """
    difference = base_logp - logp
    return difference.exp() - difference - 1.0


def weighted_gradient(view: TokenView, config: PolicyConfig) -> TokenLoss:
    """``dr_grpo`` and others: −w · A · log pi with w = pi / pi_behaviour, bounded and without a gradient.

    Dr.GRPO (arXiv 2503.20783) divides by a constant number of tokens, RLOO (arXiv 2402.14740) by episodes, with a
    leave-one-out baseline. At staleness 0 the weights are 1 except for rounding.

    ``sft``: with w = 1 and A = 1 for tokens of demonstrations it is their negative log-likelihood. ``dpo``: A is the
    derivative by the tokens' log-probabilities (``group_pass.preferences``).
    """
    weights, changed = importance_weights(view.logp, view.behaviour, view.sequence, config)
    return TokenLoss(-(weights * view.advantage * view.logp), changed)


def clipped_ratio(view: TokenView, config: PolicyConfig) -> TokenLoss:
    """``grpo`` and ``dapo``: −min(r·A, clip(r)·A) with r = pi / pi_behaviour, at most −c·A if A < 0.

    GRPO (arXiv 2402.03300, equation 3) and DAPO (arXiv 2503.14476, equation 8) differ in the mean and in the upper end
    of the clip range. The ratio itself corrects for staleness, so there is no importance weight.
    """
    values, clipped = clipped_objective(ratio(view.logp, view.behaviour), view.advantage, config)
    left_out = masked_out(view.logp, view.behaviour, view.sequence, config)
    return TokenLoss(values.masked_fill(left_out, 0.0), clipped | left_out)


def cispo(view: TokenView, config: PolicyConfig) -> TokenLoss:
    """−min(r, 1 + clip_high) · A · log pi, the minimum without a gradient, r = pi / pi_behaviour.

    MiniMax-M1 (arXiv 2506.13585, equations 4 and 5). The weight is clipped, not the objective: every token keeps its
    gradient, also rare tokens that are decisive in a chain of thought. There is no lower clip.
    """
    ratios = ratio(view.logp.detach(), view.behaviour)
    _, high = clip_range(config)
    left_out = masked_out(view.logp, view.behaviour, view.sequence, config)
    weights = ratios.clamp(max=high).masked_fill(left_out, 0.0)
    return TokenLoss(-(weights * view.advantage * view.logp), (ratios > high) | left_out)


def gspo(view: TokenView, config: PolicyConfig) -> TokenLoss:
    """−min(s·A, clip(s)·A) at each token of a sequence, with s = exp(mean of log pi − log pi_behaviour).

    GSPO (arXiv 2507.18071, equations 5 to 7). s is the geometric mean of the tokens' ratios, so its clip range is
    narrow. Each trajectory is a sequence. Tokens may have the advantages of their turns, so this is GSPO-token (section
    4.3, equations 13 and 14): the ratio has the value of the sequence and the gradient of its token.

    At most −c·A if A < 0, against short replies that the sampler found unlikely; the paper has no such bound.
    """
    now = view.logp.detach()
    mean = sequence_means((now - view.behaviour).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT), view.sequence)
    ratios = mean.exp()[view.sequence] * (view.logp - now).exp()  # the second factor is 1, and has the gradient
    values, clipped = clipped_objective(ratios, view.advantage, config)
    left_out = masked_out(view.logp, view.behaviour, view.sequence, config)
    return TokenLoss(values.masked_fill(left_out, 0.0), clipped | left_out)


def decoupled_ppo(view: TokenView, config: PolicyConfig) -> TokenLoss:
    """``ppo``: −w · min(u·A, clip(u)·A) with w = pi_proximal / pi_behaviour, bounded, and u = pi / pi_proximal.

    AReaL (arXiv 2505.24298, equation 5). The proximal policy is the one before the step's first update. In the first
    epoch the clipped ratio is 1; in further epochs the clip keeps the updates of one step together. If A < 0, the
    minimum is at least c·A.
    """
    proximal = view.logp.detach() if view.proximal is None else view.proximal
    weights, changed = importance_weights(proximal, view.behaviour, view.sequence, config)
    values, clipped = clipped_objective(ratio(view.logp, proximal), view.advantage, config)
    return TokenLoss(weights * values, changed | clipped)


LOSSES: dict[str, Loss] = {
    "dr_grpo": weighted_gradient,
    "grpo": clipped_ratio,
    "dapo": clipped_ratio,
    "cispo": cispo,
    "gspo": gspo,
    "reinforce": weighted_gradient,
    SFT: weighted_gradient,
    DPO: weighted_gradient,
    DISTILL: weighted_gradient,
    "ppo": decoupled_ppo,
}
