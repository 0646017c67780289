"""The work that waits at one sampler and is under way there, in that sampler's own seconds. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

READ, WRITTEN = 1e-4, 3e-4
"""Seconds of a prefilled and of a sampled token, until the sampler's own are known."""


class Backlog:
    """Tokens that a sampler has still to compute, counted in full until a turn has ended."""

    def __init__(self, read: float = READ, written: float = WRITTEN) -> None:
        """``read`` and ``written``: seconds that a prefilled and a sampled token take there."""
        self.read = read
        self.written = written
        self._prefilled = 0
        self._sampled = 0.0
        self._turns = 0

    @property
    def seconds(self) -> float:
        """How long the sampler computes for what waits and what is under way."""
        return self.cost(self._prefilled, self._sampled)

    def cost(self, prefilled: int, sampled: float) -> float:
        """How long it computes for so many tokens."""
        return self.read * prefilled + self.written * sampled

    @contextmanager
    def turn(self, prefilled: int, sampled: float) -> Iterator[None]:
        """Count a turn, which is expected to read and sample so many tokens, while the block runs."""
        self._turns += 1
        self._prefilled += prefilled
        self._sampled += sampled
        try:
            yield
        finally:
            self._turns -= 1
            self._prefilled -= prefilled
            self._sampled = self._sampled - sampled if self._turns else 0.0  # sums are rounded
