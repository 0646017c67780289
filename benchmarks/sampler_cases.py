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


@dataclass(frozen=True)
class Case:
    """One combination."""

    sequences: int
    adapters: int
    prompt: int = 12
    """Tokens."""
    tokens: int = 24
    """Sampled for each sequence."""

    @property
    def sampled(self) -> int:
        """Tokens of all sequences."""
        return self.sequences * self.tokens

    def adapter(self, sequence: int) -> int:
        """Groups take adapters in turn; where groups are fewer than adapters, sequences do."""
        members = MEMBERS if self.sequences >= MEMBERS * self.adapters else self.sequences // self.adapters
        return sequence // members % self.adapters

    def prompts(self, repetition: int) -> NDArray[np.int32]:
        """(sequences, prompt): neighbours of one adapter share theirs; other ones for each repetition."""
        random = np.random.default_rng(repetition)
        members = max(1, min(MEMBERS, self.sequences // self.adapters))
        distinct = random.integers(3, 288, (-(-self.sequences // members), self.prompt), dtype=np.int32)
        return np.repeat(distinct, members, axis=0)[: self.sequences]


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
    Case(256, 1),
    Case(256, 8),
    Case(256, 32),
)
STEPS = (Case(64, 1, prompt=12, tokens=6), Case(64, 1, prompt=256, tokens=6))
"""What one optimizer step of the demo samples; and the same with long prompts."""
EVERY = max(case.adapters for case in GRID)
"""Adapters that are loaded on each side."""
LENGTH = 512
"""Tokens that fit in a sequence, on every side that asks: marlaas's default."""
