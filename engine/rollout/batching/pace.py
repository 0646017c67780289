"""How many rows go into one decode call of llama.cpp, and how many calls in a row they get.

With a base that stays in the processor's cache, a call with rows of another adapter costs a graph and its memory anew.
Where adapters share calls, many rows make products faster and share what a call costs; else few rows, which stay for
some tokens, keep what they hold in the cache. With a large base each call reads the weights from main memory, and every
row shares that.
"""

from __future__ import annotations

from dataclasses import dataclass

CACHE = 16 << 20
"""Bytes of weights that are assumed to stay in a processor's cache."""
FEW, MORE = 1, 4
"""Sequences between two that are computed for nothing, rather than make one micro-batch more: where rows stay for some
tokens, and where each micro-batch is a new graph, or reads all weights from main memory; both take as long as four rows
and more."""
ENOUGH = 64
"""Rows from which on a call with a large base takes as long for each row: reading the weights is a small part of it."""


@dataclass(frozen=True)
class Pace:
    """How many rows and tokens the batch scheduler decodes at a time."""

    rows: int
    """Most rows of one decode call."""
    tokens: int
    """Tokens sampled in a row for the same turns before others get their part."""
    bridge: int = FEW
    """Holes of up to so many sequences between those of a call are filled, on llama.cpp."""
    enough: int = 128
    """Running turns from which on no memory is taken for more: their rows would make a call hardly faster."""


def large(weights: int) -> bool:
    """Whether each call reads a base of ``weights`` bytes from main memory: its adapters should then share calls."""
    return weights > CACHE


def pace_of(weights: int, mixes: bool) -> Pace:
    """The pace for a base of ``weights`` bytes, whose adapters share calls if it ``mixes``."""
    if large(weights):
        return Pace(rows=256, tokens=1, bridge=MORE, enough=ENOUGH)
    return Pace(rows=128, tokens=4, bridge=MORE) if mixes else Pace(rows=16, tokens=32)
