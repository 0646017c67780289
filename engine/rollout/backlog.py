"""The work that waits at one sampler and is under way there, in that sampler's own seconds. Pure."""

from __future__ import annotations

from types import TracebackType

READ, WRITTEN = 1e-4, 3e-4
"""Seconds of a prefilled and of a sampled token, until the sampler's own are known."""


class Backlog:
    """Tokens that a sampler has still to compute, counted in full until a turn has ended."""

    def __init__(self, read: float = READ, written: float = WRITTEN) -> None:
        """``read`` and ``written``: seconds that a prefilled and a sampled token take there."""
        self.read = read
        self.written = written
        self.way = 0.0
        """Seconds that a turn is on the way there and back, while the sampler computes for others."""
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

    def turn(self, prefilled: int, sampled: float) -> Turn:
        """Counts a turn, which is expected to read and sample so many tokens, while it is entered."""
        return Turn(self, prefilled, sampled)

    def add(self, prefilled: int, sampled: float) -> None:
        """A turn waits."""
        self._turns += 1
        self._prefilled += prefilled
        self._sampled += sampled

    def remove(self, prefilled: int, sampled: float) -> None:
        """It has ended."""
        self._turns -= 1
        self._prefilled -= prefilled
        self._sampled = self._sampled - sampled if self._turns else 0.0  # sums are rounded


class Turn:
    """A turn of a backlog, for a ``with`` block; a class, since each episode has several."""

    __slots__ = ("_backlog", "_prefilled", "_sampled")

    def __init__(self, backlog: Backlog, prefilled: int, sampled: float) -> None:
        self._backlog = backlog
        self._prefilled = prefilled
        self._sampled = sampled

    def __enter__(self) -> None:
        self._backlog.add(self._prefilled, self._sampled)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._backlog.remove(self._prefilled, self._sampled)
