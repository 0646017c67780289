"""Ratios of probabilities between policies, of tokens and of sequences, and the ways to bound them.

All tensors are (N,), a value for each token.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...spec import published
from ..inputs import PolicyConfig

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
    """The lowest and highest ratio: as configured, else those that the loss was published with."""
    usual = published(config.loss)
    low = config.clip_low if config.clip_low is not None else usual.clip_low
    high = config.clip_high if config.clip_high is not None else usual.clip_high
    return (0.0 if low is None else 1.0 - low), (float("inf") if high is None else 1.0 + high)


def clipped_objective(ratios: Tensor, advantage: Tensor, config: PolicyConfig) -> tuple[Tensor, Tensor]:
    """−min(r·A, clip(r)·A), and where clipping removes the gradient (PPO, arXiv 1707.06347, equation 7).

    Where A < 0, that minimum has no lower bound: a token that the sampler found unlikely and the trainer does not takes
    the whole gradient. So it is at least c·A there (dual clip: Ye et al., arXiv 1912.09729; ``clip_ratio_c`` in verl).
    """
    dual = config.clip_dual if config.clip_dual is not None else published(config.loss).clip_dual
    plain, bounded = ratios * advantage, ratios.clamp(*clip_range(config)) * advantage
    objective, least = torch.minimum(plain, bounded), advantage * (dual or float("inf"))
    too_low = (advantage < 0.0) & (objective < least)
    return -torch.where(too_low, least, objective), (bounded < plain) | too_low


def _beyond(ratios: Tensor, low: float, high: float) -> Tensor:
    return (ratios < low) | (ratios > high)
