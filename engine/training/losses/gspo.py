"""``gspo``: one clipped ratio for each sequence (arXiv 2507.18071, equations 5 to 7).

The ratio is the geometric mean of the tokens' ratios, so it stays near 1 and its clip range is narrow. Where an
episode has several trajectories, each is a sequence with a ratio of its own.

Tokens of a sequence may have different advantages, those of their turns. So this is GSPO-token (section 4.3, equations
13 and 14): the ratio's value is that of the sequence, its gradient at each token that of the token alone. Where the
sequence has one advantage, both have the same gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..inputs import PolicyConfig
from .ratios import LOG_RATIO_LIMIT, clip_range, clipped_objective
from .terms import TokenLoss, TokenView


def gspo(view: TokenView, config: PolicyConfig) -> TokenLoss:
    """−min(s·A, clip(s)·A) at each token of a sequence, with s = exp(mean of log pi − log pi_behaviour)."""
    now = view.logp.detach()
    mean = sequence_means((now - view.behaviour).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT), view.sequence)
    ratios = mean.exp()[view.sequence] * (view.logp - now).exp()  # the second factor is 1, and has the gradient
    values, clipped = clipped_objective(ratios, view.advantage, *clip_range(config))
    return TokenLoss(values, clipped)


def sequence_means(values: Tensor, sequence: Tensor) -> Tensor:
    """The mean of ``values`` (N,) over each of S sequences, (S,)."""
    counts = torch.bincount(sequence)
    return torch.zeros(len(counts), dtype=values.dtype, device=values.device).index_add(0, sequence, values) / counts
