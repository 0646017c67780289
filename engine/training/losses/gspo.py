"""``gspo``: one clipped ratio for each sequence (arXiv 2507.18071, equations 5 to 7).

The ratio is the geometric mean of the tokens' ratios, so it stays near 1 and its clip range is narrow. Where an
episode has several trajectories, each is a sequence with a ratio of its own.

Tokens of a sequence may have different advantages, those of their turns. So this is GSPO-token (section 4.3, equations
13 and 14): the ratio's value is that of the sequence, its gradient at each token that of the token alone. Where the
sequence has one advantage, both have the same gradient.
"""

from __future__ import annotations

from ..inputs import PolicyConfig
from .ratios import LOG_RATIO_LIMIT, clipped_objective, masked_out, sequence_means
from .terms import TokenLoss, TokenView


def gspo(view: TokenView, config: PolicyConfig) -> TokenLoss:
    """−min(s·A, clip(s)·A) at each token of a sequence, with s = exp(mean of log pi − log pi_behaviour).

    At most −c·A where A < 0, against short replies that the sampler found unlikely; the paper has no such bound.
    """
    now = view.logp.detach()
    mean = sequence_means((now - view.behaviour).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT), view.sequence)
    ratios = mean.exp()[view.sequence] * (view.logp - now).exp()  # the second factor is 1, and has the gradient
    values, clipped = clipped_objective(ratios, view.advantage, config)
    left_out = masked_out(view.logp, view.behaviour, view.sequence, config)
    return TokenLoss(values.masked_fill(left_out, 0.0), clipped | left_out)
