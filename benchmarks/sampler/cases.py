"""What every sampler is given: how many sequences, under how many adapters, with which prompts. Pure data.

All sides sample the same number of tokens for every sequence and never stop early, so that tokens a second compare.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

MEMBERS = 8
"""Sequences that share a prompt, where there are as many."""
RANK, ALPHA = 16, 32
MIXED = (8, 16, 64)
"""Ranks of adapters that are mixed."""
EQUAL, UNEQUAL = 96, 32
"""Adapters that are loaded on each side: of one rank, and after them mixed ones."""


@dataclass(frozen=True)
class Case:
    """One combination."""

    sequences: int
    adapters: int
    prompt: int = 12
    """Tokens."""
    tokens: int = 24
    """Sampled for each sequence."""
    mixed: bool = False
    """Adapters of unequal ranks."""

    @property
    def sampled(self) -> int:
        """Tokens of all sequences."""
        return self.sequences * self.tokens

    def adapter(self, sequence: int) -> int:
        """Groups take adapters in turn; where groups are fewer than adapters, sequences do."""
        members = MEMBERS if self.sequences >= MEMBERS * self.adapters else self.sequences // self.adapters
        return sequence // members % self.adapters + (EQUAL if self.mixed else 0)

    def prompts(self, repetition: int) -> NDArray[np.int32]:
        """(sequences, prompt): neighbours of one adapter share theirs; other ones for each repetition."""
        random = np.random.default_rng(repetition)
        members = max(1, min(MEMBERS, self.sequences // self.adapters))
        distinct = random.integers(3, 288, (-(-self.sequences // members), self.prompt), dtype=np.int32)
        return np.repeat(distinct, members, axis=0)[: self.sequences]


def rank(adapter: int) -> int:
    """Of an adapter by its number."""
    return RANK if adapter < EQUAL else MIXED[adapter % len(MIXED)]


class Side(Protocol):
    """A sampler under test, with its model and adapters loaded."""

    def run(self, case: Case, repetition: int) -> float:
        """Sample everything; returns seconds."""

    def close(self) -> None:
        """Give memory back."""


GRID = (
    Case(1, 1),
    Case(8, 1),
    Case(8, 8),
    Case(64, 1),
    Case(64, 8),
    Case(64, 32),
    Case(64, 32, mixed=True),
    Case(64, 32, prompt=256),
    Case(96, 96),
    Case(256, 1),
    Case(256, 8),
    Case(256, 32),
)
STEPS = (Case(64, 1, prompt=12, tokens=6), Case(64, 1, prompt=256, tokens=6))
"""What one optimizer step of the demo samples; and the same with long prompts."""
LENGTH = 512
"""Tokens that fit in a sequence, on every side that asks: marlaas's default."""
