"""What a step's gradient is divided by: known only when the last of its groups has been through.

Groups are accumulated as they arrive, undivided, at fixed weights; the sum is divided once, at the step. So the update
is the same in whatever order and in however many calls the groups came, also for losses that are a mean over all
tokens of the step. Plain arithmetic: imports no torch.
"""

from __future__ import annotations

from .losses.published import published
from .protocol import PolicyConfig


def divisor(config: PolicyConfig, tokens: int) -> float:
    """Of a step of ``tokens`` trained tokens, those of groups without signal included."""
    return float(max(1, tokens)) if published(config.loss).mean == "token" else config.denominator
