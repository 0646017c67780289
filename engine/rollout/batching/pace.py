"""How many rows go into one decode call, and how many calls in a row they get, by the size of the processor's cache.

With a small base a call's time goes to reading the memory of its sequences. A few rows whose memory stays in the cache
are then faster than many whose memory does not, if they stay for some tokens, and another adapter or other rows cost a
new graph each time. With a large base each call reads the weights from main memory, and every row shares that.
"""

from __future__ import annotations

from dataclasses import dataclass

CACHE = 16 << 20
"""Bytes of weights that are assumed to stay in a processor's cache."""
FEW, MORE = 1, 4
"""Sequences between two that are computed for nothing, rather than make one micro-batch more: where weights stay in the
cache, and where each micro-batch reads them from main memory, which takes as long as four rows and more."""


@dataclass(frozen=True)
class Pace:
    """How many rows and tokens the batch scheduler decodes at a time."""

    rows: int
    """Most rows of one decode call."""
    tokens: int
    """Tokens sampled in a row for the same turns before others get their part."""
    bridge: int = FEW
    """Holes of up to so many sequences between those of a call are filled, on llama.cpp."""


def large(weights: int) -> bool:
    """Whether each call reads a base of ``weights`` bytes from main memory: its adapters should then share calls."""
    return weights > CACHE


def pace_of(weights: int, exact: bool) -> Pace:
    """The pace for a base of ``weights`` bytes. An ``exact`` context reads the memory of 256 tokens and more, however
    few a sequence holds."""
    if large(weights):
        return Pace(rows=256, tokens=1, bridge=MORE)
    return Pace(rows=8 if exact else 16, tokens=32)
