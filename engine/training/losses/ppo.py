"""Decoupled ``ppo``: updates stay close to another policy than the one that sampled (AReaL, arXiv 2505.24298, eq. 5).

This proximal policy is the one before the step's first update. In the first epoch it is the policy itself, so that the
clipped ratio is 1 and the loss is a policy gradient with importance weights; with further epochs the clip keeps the
updates of one step together.
"""

from __future__ import annotations

from ..inputs import PolicyConfig
from .ratios import clipped_objective, importance_weights, ratio
from .terms import TokenLoss, TokenView


def decoupled_ppo(view: TokenView, config: PolicyConfig) -> TokenLoss:
    """−w · min(u·A, clip(u)·A) with w = pi_proximal / pi_behaviour, bounded, and u = pi / pi_proximal.

    Where A < 0, the minimum is at least c·A.
    """
    proximal = view.logp.detach() if view.proximal is None else view.proximal
    weights, changed = importance_weights(proximal, view.behaviour, view.sequence, config)
    values, clipped = clipped_objective(ratio(view.logp, proximal), view.advantage, config)
    return TokenLoss(weights * values, changed | clipped)
