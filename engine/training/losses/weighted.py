"""The policy gradient with importance weights held constant: ``dr_grpo`` and ``reinforce``.

Both use one formula and differ in the mean (``published``) and the advantage: Dr.GRPO (arXiv 2503.20783) divides by a
constant number of tokens, RLOO (arXiv 2402.14740) by episodes, with a leave-one-out baseline. At staleness 0 the
weights are 1 except for rounding, and both are REINFORCE.
"""

from __future__ import annotations

from ..inputs import PolicyConfig
from .ratios import importance_weights
from .terms import TokenLoss, TokenView


def weighted_gradient(view: TokenView, config: PolicyConfig) -> TokenLoss:
    """−w · A · log pi with w = pi / pi_behaviour, bounded and without a gradient."""
    weights, changed = importance_weights(view.logp, view.behaviour, view.sequence, config)
    return TokenLoss(-(weights * view.advantage * view.logp), changed)
