"""What a token costs at rollout, in units of a prefilled one. Pure; the engine and the sampler charge by the same."""

from __future__ import annotations

PREFILLED = 1
SAMPLED = 4
"""A sampled token reads all weights and its conversation's memory once more; prefilled ones share one reading."""


def rollout_cost(prefilled: int, sampled: int) -> int:
    """Of a turn, or of part of one."""
    return PREFILLED * prefilled + SAMPLED * sampled
