"""Decides which policies share a pass over the base, and how much that may delay a tenant."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np
from numpy.typing import NDArray

from ..training import PolicyConfig

# With many calls in each pass, each policy would have one step per pass, and weights would mean nothing. So a tenant
# that is ahead, by weight, makes passes that are short enough for the others, measured by their usual absence between
# an answer and the next call.

LATE = 2.0
"""A tenant is expected for this many times its longest recent absence."""
KEPT = 0.97
"""Decay of earlier service per pass: it is forgotten after a hundred passes."""
MORE = 1.15
"""A tenant is ahead with this many times as much service: passes even out a tenth or two by themselves."""


class PassShares:
    """Recent service of one trainer's tenants; ``now`` counts seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._had: dict[str, float] = {}
        self._calls: dict[str, set[object]] = {}
        self._left: dict[str, float] = {}
        """Time of the last answer of tenants without a call."""
        self._away: dict[str, float] = {}
        """Moving mean of the seconds until its next call; 0 for a call that comes while another is here."""
        self._longest: dict[str, float] = {}
        """The longest recent one: between two steps a tenant is away for longer than within one."""

    def came(self, tenant: str, call: object) -> None:
        """The tenant calls. One that was not expected begins level with the tenant that has had least."""
        if tenant not in self._calls and not self._soon(tenant):
            least = min((self._had.get(one, 0.0) for one in self._there()), default=0.0)
            self._had[tenant] = max(least, self._had.get(tenant, 0.0))
        calls = self._calls.setdefault(tenant, set())
        left = self._left.pop(tenant, None)
        if calls:
            self._away[tenant] = moving_mean(self._away.get(tenant, 0.0), 0.0)
        elif left is not None:
            away = self._now() - left
            self._away[tenant] = moving_mean(self._away.get(tenant, away), away)
            self._longest[tenant] = max(away, moving_mean(self._longest.get(tenant, away), away))
        calls.add(call)

    def went(self, tenant: str, call: object) -> None:
        calls = self._calls.get(tenant, set())
        if call in calls:
            calls.discard(call)
            if not calls:
                del self._calls[tenant]
                self._left[tenant] = self._now()

    def passed(self) -> None:
        for tenant in self._had:
            self._had[tenant] *= KEPT

    def charge(self, tenant: str, seconds: float) -> None:
        self._had[tenant] = self._had.get(tenant, 0.0) + seconds

    def patience(self, tenant: str, usual: float) -> float:
        """Seconds, at most ``usual``, by which a call of ``tenant`` may lengthen a pass."""
        if len(self._had) < 2:
            return usual
        had = self._had.get(tenant, 0.0)
        behind = [one for one in self._there() if one != tenant and MORE * self._had.get(one, 0.0) < had]
        return min([usual, *(WAIT * self._away[one] for one in behind if one in self._away)])

    def _there(self) -> list[str]:
        return [*self._calls, *filter(self._soon, self._left)]

    def _soon(self, tenant: str) -> bool:
        return self._now() - self._left.get(tenant, -inf) < LATE * self._longest.get(tenant, 0.0)


# Several policies in one pass pay its fixed time once; how much that gains is learnt from passes. The wait of others is
# bounded by a share of the time between their calls.

GAIN = 0.05
WAIT = 0.25
"""Share of the time between two calls of a policy by which a shared pass may lengthen the wait of others."""
LEAST_WAIT = 0.05
MOST = 32
NEWEST = 0.25
PRIOR = 1e-3
"""Weight, in passes, of the prior: a pass costs as much fixed as by its tokens, and further policies add nothing to
the fixed part."""


@dataclass(frozen=True)
class Shape:
    """What decides how long a policy's tokens take, besides their number."""

    rank: int
    kl: bool
    entropy: bool

    @classmethod
    def of(cls, config: PolicyConfig) -> Shape:
        return cls(config.rank, config.kl > 0.0, config.entropy > 0.0)


@dataclass(frozen=True)
class Piece:
    """One policy's part of a pass."""

    shape: Shape
    tokens: int


@dataclass(frozen=True)
class Times:
    """Seconds of a pass: ``first + (policies - 1) · further + tokens · token``."""

    first: float
    further: float
    token: float


@dataclass
class _Fit:
    products: NDArray[np.float64] = field(default_factory=lambda: np.zeros((3, 3)))
    answers: NDArray[np.float64] = field(default_factory=lambda: np.zeros(3))
    tokens: float = 0.0
    seconds: float = 0.0
    passes: float = 0.0

    def add(self, policies: int, tokens: int, seconds: float) -> None:
        row = np.array([1.0, policies - 1.0, tokens]) / seconds
        self.products = KEPT * self.products + np.outer(row, row)
        self.answers = KEPT * self.answers + row
        self.tokens = KEPT * self.tokens + tokens
        self.seconds = KEPT * self.seconds + seconds
        self.passes = KEPT * self.passes + 1.0

    def solved(self) -> Times:
        mean, tokens = self.seconds / self.passes, max(1.0, self.tokens / self.passes)
        scale = np.array([mean, mean, mean / tokens])
        believed = np.array([0.5, 0.0, 0.5])
        products = scale[:, None] * self.products * scale + PRIOR * np.eye(3)
        first, further, token = np.linalg.solve(products, scale * self.answers + PRIOR * believed) * scale
        return Times(max(0.0, float(first)), max(0.0, float(further)), max(0.0, float(token)))


class PassTimes:
    """Learns the durations of passes, for each shape of policies."""

    def __init__(self) -> None:
        self._fits: defaultdict[Shape, _Fit] = defaultdict(_Fit)
        self._solved: dict[Shape, Times] = {}

    def learn(self, pieces: Sequence[Piece], seconds: float) -> None:
        """Learn from a pass. Empty passes and mixed shapes teach nothing."""
        shapes, tokens = {piece.shape for piece in pieces}, sum(piece.tokens for piece in pieces)
        if len(shapes) == 1 and tokens and seconds > 0.0:
            (shape,) = shapes
            self._fits[shape].add(len(pieces), tokens, seconds)
            self._solved.pop(shape, None)

    def of(self, shape: Shape) -> Times | None:
        if shape not in self._solved and self._fits[shape].passes:
            self._solved[shape] = self._fits[shape].solved()
        return self._solved.get(shape)

    def seconds(self, pieces: Sequence[Piece]) -> float:
        known = [(piece, times) for piece in pieces if (times := self.of(piece.shape))]
        if not known:
            return 0.0
        first = max((times for _, times in known), key=lambda times: times.first)
        further = sum(times.further for _, times in known) - first.further
        return first.first + further + sum(times.token * piece.tokens for piece, times in known)


def joins(taken: Sequence[Piece], piece: Piece, times: PassTimes, patience: float) -> bool:
    """True if a further policy's groups join the pass with those ``taken``, at least one.

    ``patience`` is how many seconds others may wait longer. Pieces of unknown shape do not join: the first passes are
    measured separately.
    """
    if len(taken) >= MOST or any(times.of(each.shape) is None for each in (*taken, piece)):
        return False
    together = times.seconds([*taken, piece])
    alone = times.seconds([piece])
    saved = times.seconds(taken) + alone - together
    return saved >= GAIN * alone and together - times.seconds(taken[:1]) <= patience


def patience(intervals: Iterable[float]) -> float:
    """Seconds by which others may wait longer, from the known intervals between calls."""
    known = tuple(intervals)
    return max(LEAST_WAIT, WAIT * sum(known) / len(known)) if known else LEAST_WAIT


def moving_mean(mean: float, newest: float) -> float:
    """A moving mean with one more value."""
    return mean + NEWEST * (newest - mean)
