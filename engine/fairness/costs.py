"""What tokens cost at rollout, in units of a prefilled token. Pure; the engine and the sampler both charge by it."""

from __future__ import annotations

PREFILLED = 1
SAMPLED = 2
"""Cost of a sampled token, as in Sheng et al. (arXiv 2401.00588). Measured with the shipped base on one core, it takes
1 to 3 times as long as a prefilled one at contexts below 100 tokens, and 3 to 11 times at 300 (llama.cpp and torch)."""


def rollout_cost(prefilled: int, sampled: int) -> int:
    """The cost of a turn, or of a part of one, by its tokens."""
    return PREFILLED * prefilled + SAMPLED * sampled
