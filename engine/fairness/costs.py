"""What a token costs at rollout, in units of a prefilled one. Pure; the engine and the sampler charge by the same."""

from __future__ import annotations

PREFILLED = 1
SAMPLED = 2
"""As in Sheng et al. (arXiv 2401.00588). Measured with the shipped base on one core, a sampled token takes 1 to 3 times
as long as a prefilled one at contexts below 100 tokens, and 3 to 11 times at 300 (llama.cpp and torch)."""


def rollout_cost(prefilled: int, sampled: int) -> int:
    """Of a turn, or of part of one."""
    return PREFILLED * prefilled + SAMPLED * sampled
