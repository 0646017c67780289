"""The input and the result of a loss. Knows nothing of models, padding, adapters or other groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from ..inputs import PolicyConfig


@dataclass(frozen=True)
class TokenView:
    """N trained tokens of one batch, of whole sequences."""

    logp: Tensor
    """float32 (N,): log-probabilities by the policy being trained, with a gradient."""
    behaviour: Tensor
    """float32 (N,): log-probabilities by the policy that sampled."""
    advantage: Tensor
    """float32 (N,): each token has that of its turn, or of its whole sequence."""
    sequence: Tensor
    """int64 (N,): which sequence of the batch, ascending from 0; for losses over whole sequences."""
    proximal: Tensor | None = None
    """float32 (N,): log-probabilities by the policy before the step's first update; None in the first pass, where
    these are ``logp``."""


@dataclass(frozen=True)
class TokenLoss:
    """What a loss returns: a value for each token, of which ``policy_loss`` takes the mean that the loss asks for."""

    values: Tensor
    """float32 (N,), with a gradient by ``TokenView.logp``."""
    clipped: Tensor
    """bool (N,): where a weight was truncated, or a ratio clipped so that the token has no gradient."""


Loss = Callable[[TokenView, PolicyConfig], TokenLoss]
