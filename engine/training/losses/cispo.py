"""``cispo``: the policy gradient with a clipped weight (MiniMax-M1, arXiv 2506.13585, equations 4 and 5).

Because the weight is clipped, not the objective, every token keeps its gradient, also rare tokens that are decisive in
a chain of thought. There is no lower clip.
"""

from __future__ import annotations

from ..inputs import PolicyConfig
from .ratios import clip_range, masked_out, ratio
from .terms import TokenLoss, TokenView


def cispo(view: TokenView, config: PolicyConfig) -> TokenLoss:
    """−min(r, 1 + clip_high) · A · log pi, the minimum without a gradient, r = pi / pi_behaviour."""
    ratios = ratio(view.logp.detach(), view.behaviour)
    _, high = clip_range(config)
    left_out = masked_out(view.logp, view.behaviour, view.sequence, config)
    weights = ratios.clamp(max=high).masked_fill(left_out, 0.0)
    return TokenLoss(-(weights * view.advantage * view.logp), (ratios > high) | left_out)
