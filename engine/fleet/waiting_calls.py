"""What waits before a trainer, as sums: how long it takes is told without a look at each call.

With many trainers that is asked for all of them before every call; looking at each call that waits anywhere would make
the cost of a call grow with the number of tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from .fusing import PassTimes, Piece, Shape


class WaitingCall(Protocol):
    """What is asked of a call."""

    @property
    def kind(self) -> str:
        """The trainer's method."""

    @property
    def piece(self) -> Piece | None:
        """What an accumulation computes."""


@dataclass
class _Sum:
    calls: int = 0
    tokens: int = 0


class WaitingCalls:
    """The calls of one line."""

    def __init__(self) -> None:
        self._there: set[WaitingCall] = set()
        self._shapes: dict[Shape, _Sum] = {}
        self._kinds: Counter[str] = Counter()
        """Of calls without a piece."""

    def add(self, call: WaitingCall) -> None:
        """A call waits."""
        if call not in self._there:
            self._there.add(call)
            self._count(call, 1)

    def discard(self, call: WaitingCall) -> None:
        """It waits no more; one that does not wait is ignored."""
        if call in self._there:
            self._there.discard(call)
            self._count(call, -1)

    def seconds(self, times: PassTimes, usual: Mapping[str, float]) -> float:
        """How long all take one after the other; what nothing is known of counts as nothing."""
        passes = ((known, own) for shape, own in self._shapes.items() if (known := times.of(shape)))
        return sum(known.first * own.calls + known.token * own.tokens for known, own in passes) + sum(
            usual.get(kind, 0.0) * count for kind, count in self._kinds.items()
        )

    def _count(self, call: WaitingCall, by: int) -> None:
        piece = call.piece
        if piece is None:
            self._kinds[call.kind] += by
            return
        own = self._shapes.setdefault(piece.shape, _Sum())
        own.calls += by
        own.tokens += by * piece.tokens
        if not own.calls:
            del self._shapes[piece.shape]
