"""PPO's clipped objective on the ratio to the policy that sampled: ``grpo`` and ``dapo``.

GRPO (arXiv 2402.03300, equation 3) and DAPO (arXiv 2503.14476, equation 8) differ in the mean and in the upper end of
the clip range (``published``). The old policy of the papers is the one that sampled, whatever its version: the ratio
corrects for staleness by itself, so no importance weight is multiplied on top of it.
"""

from __future__ import annotations

from ..inputs import PolicyConfig
from .ratios import clipped_objective, masked_out, ratio
from .terms import TokenLoss, TokenView


def clipped_ratio(view: TokenView, config: PolicyConfig) -> TokenLoss:
    """−min(r·A, clip(r)·A) with r = pi / pi_behaviour, at most −c·A where A < 0."""
    values, clipped = clipped_objective(ratio(view.logp, view.behaviour), view.advantage, config)
    left_out = masked_out(view.logp, view.behaviour, view.sequence, config)
    return TokenLoss(values.masked_fill(left_out, 0.0), clipped | left_out)
