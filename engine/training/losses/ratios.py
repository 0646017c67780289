"""Ratios of probabilities between policies, and the three ways to bound them: truncate, mask, clip.

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


def beyond(ratios: Tensor, config: PolicyConfig) -> Tensor:
    """Which ratios are below the floor or above the cap, bool."""
    return (ratios > config.importance_cap) | (ratios < config.importance_floor)


def importance_weights(logp: Tensor, behaviour: Tensor, config: PolicyConfig) -> tuple[Tensor, Tensor]:
    """Detached weights pi / pi_behaviour, and which of them were changed (bool).

    ``truncate`` moves those outside of floor and cap to the nearer of the two (verl, C = 2); ``mask`` makes them 0, so
    that the token is not trained on (IcePop, as in INTELLECT-3); ``none`` makes every weight 1.
    """
    ratios = ratio(logp.detach(), behaviour)
    outside = beyond(ratios, config)
    if config.importance == "none":
        return torch.ones_like(ratios), torch.zeros_like(outside)
    if config.importance == "mask":
        return ratios.masked_fill(outside, 0.0), outside
    return ratios.clamp(config.importance_floor, config.importance_cap), outside


def masked_out(ratios: Tensor, config: PolicyConfig) -> Tensor:
    """Which tokens ``importance = "mask"`` leaves out (bool), for losses without importance weights beside a ratio."""
    return (
        beyond(ratios.detach(), config) if config.importance == "mask" else torch.zeros_like(ratios, dtype=torch.bool)
    )


def clip_range(config: PolicyConfig) -> tuple[float, float]:
    """The lowest and highest ratio: as configured, else those that the loss was published with."""
    usual = published(config.loss)
    low = config.clip_low if config.clip_low is not None else usual.clip_low
    high = config.clip_high if config.clip_high is not None else usual.clip_high
    return (0.0 if low is None else 1.0 - low), (float("inf") if high is None else 1.0 + high)


def clipped_objective(ratios: Tensor, advantage: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """−min(r·A, clip(r, low, high)·A) (PPO, arXiv 1707.06347, equation 7), and where clipping removes the gradient."""
    plain, bounded = ratios * advantage, ratios.clamp(low, high) * advantage
    return -torch.minimum(plain, bounded), bounded < plain
