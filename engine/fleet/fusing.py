"""Which policies are trained in one pass over the base, and by how much that may delay a tenant."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np
from numpy.typing import NDArray

from ..training import PolicyConfig

# By how much a tenant may lengthen a shared pass for those that have had less of the trainer than it.
#
# A clock alone cannot share out passes in which the calls of many go together. Two passes that take turns would hold
# the calls of all, so that each policy had one step in the time of both, whatever its tenant's share is: a tenant
# with one task as much as each of another's eight, and weights would mean nothing. So a tenant that has had more than
# another, by weight, makes passes that are short enough for the other: measured by the time that it usually is away
# between an answer and its next call. One that calls rarely loses little by a long pass, and nobody is held up for
# its sake. Pure but for a clock.

LATE = 2.0
"""Times its longest absence lately after which a tenant is not expected any more."""
KEPT = 0.97
"""What earlier service counts after each further pass: by a hundred passes it is forgotten."""
MORE = 1.15
"""Times as much that a tenant must have had to count as ahead: passes alone make up for a tenth or two."""


class PassShares:
    """What the tenants of one trainer have had lately; ``now`` counts seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._had: dict[str, float] = {}
        """Seconds of service, divided by the tenant's weight; older ones count less."""
        self._calls: dict[str, set[object]] = {}
        """Calls that wait or are in progress, of tenants that have any."""
        self._left: dict[str, float] = {}
        """When a tenant that has no call got its last answer."""
        self._away: dict[str, float] = {}
        """Moving mean of the seconds from there to its next call; 0 for a call that comes while another is here."""
        self._longest: dict[str, float] = {}
        """The longest of these lately: between two steps a tenant is away for longer than within one."""

    def came(self, tenant: str, call: object) -> None:
        """The tenant calls. Where it was not expected any more it begins level with whoever has had least."""
        if tenant not in self._calls and not self._soon(tenant):
            least = min((self._had.get(one, 0.0) for one in self._there()), default=0.0)
            self._had[tenant] = max(least, self._had.get(tenant, 0.0))
        calls = self._calls.setdefault(tenant, set())
        left = self._left.pop(tenant, None)
        if calls:
            self._away[tenant] = moving_mean(self._away.get(tenant, 0.0), 0.0)  # another of its calls is here
        elif left is not None:
            away = self._now() - left
            self._away[tenant] = moving_mean(self._away.get(tenant, away), away)
            self._longest[tenant] = max(away, moving_mean(self._longest.get(tenant, away), away))
        calls.add(call)

    def went(self, tenant: str, call: object) -> None:
        """A call is answered, or was taken back; one that is not known is ignored."""
        calls = self._calls.get(tenant, set())
        if call in calls:
            calls.discard(call)
            if not calls:
                del self._calls[tenant]
                self._left[tenant] = self._now()

    def passed(self) -> None:
        """A pass has ended, which is charged next: what was before it counts less."""
        for tenant in self._had:
            self._had[tenant] *= KEPT

    def charge(self, tenant: str, seconds: float) -> None:
        """A tenant had this many seconds, divided by its weight."""
        self._had[tenant] = self._had.get(tenant, 0.0) + seconds

    def patience(self, tenant: str, usual: float) -> float:
        """Seconds, at most ``usual``, by which a call of ``tenant`` may lengthen a pass."""
        if len(self._had) < 2:
            return usual
        had = self._had.get(tenant, 0.0)
        behind = [one for one in self._there() if one != tenant and MORE * self._had.get(one, 0.0) < had]
        return min([usual, *(WAIT * self._away[one] for one in behind if one in self._away)])

    def _there(self) -> list[str]:
        """Tenants that have a call here or may come back at any moment."""
        return [*self._calls, *filter(self._soon, self._left)]

    def _soon(self, tenant: str) -> bool:
        """Whether a tenant without a call has not been away for longer than it is at times."""
        return self._now() - self._left.get(tenant, -inf) < LATE * self._longest.get(tenant, 0.0)


# Which policies are trained in one pass over the base: those by which it gains, as measured. Pure.
#
# A pass takes a fixed time, and time for each token. Groups of several policies in one pass pay the fixed time once,
# or most of it: how much that is depends on the base, the device and the policies' shape, so it is learnt from the
# passes that were made. What a shared pass costs is that others wait for its end, which is bounded by a share of the
# time that they have between their calls anyway.

GAIN = 0.05
"""Share of the time that a policy's groups take alone which a shared pass must save to be worth its wait."""
WAIT = 0.25
"""Share of the time between two calls of a policy by which a shared pass may lengthen the wait of others."""
LEAST_WAIT = 0.05
"""Seconds by which it always may."""
MOST = 32
"""Policies in one pass, at most."""
NEWEST = 0.25
"""Weight of the newest in moving means."""
PRIOR = 1e-3
"""Weight, in passes, of believing before anything was measured that a pass costs as much fixed as by its tokens, and
that further policies add nothing to what is fixed."""


@dataclass(frozen=True)
class Shape:
    """What decides how long a policy's tokens take, beside their number."""

    rank: int
    kl: bool
    """Whether the base alone is computed, too."""
    entropy: bool

    @classmethod
    def of(cls, config: PolicyConfig) -> Shape:
        """The shape of a policy that is trained so."""
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
    """Least squares of the relative error over the passes of one shape, in which older ones count less."""

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
        scale = np.array([mean, mean, mean / tokens])  # each number then is a share of a mean pass
        believed = np.array([0.5, 0.0, 0.5])
        products = scale[:, None] * self.products * scale + PRIOR * np.eye(3)
        first, further, token = np.linalg.solve(products, scale * self.answers + PRIOR * believed) * scale
        return Times(max(0.0, float(first)), max(0.0, float(further)), max(0.0, float(token)))


class PassTimes:
    """Learns how long passes take, for each shape of policies."""

    def __init__(self) -> None:
        self._fits: defaultdict[Shape, _Fit] = defaultdict(_Fit)
        self._solved: dict[Shape, Times] = {}

    def learn(self, pieces: Sequence[Piece], seconds: float) -> None:
        """Take in a pass. Those over nothing, and over policies of different shapes, teach nothing."""
        shapes, tokens = {piece.shape for piece in pieces}, sum(piece.tokens for piece in pieces)
        if len(shapes) == 1 and tokens and seconds > 0.0:
            (shape,) = shapes
            self._fits[shape].add(len(pieces), tokens, seconds)
            self._solved.pop(shape, None)

    def of(self, shape: Shape) -> Times | None:
        """What was learnt of a shape; None if nothing was."""
        if shape not in self._solved and self._fits[shape].passes:
            self._solved[shape] = self._fits[shape].solved()
        return self._solved.get(shape)

    def seconds(self, pieces: Sequence[Piece]) -> float:
        """How long a pass over these takes, at least one; 0 if nothing is known."""
        known = [(piece, times) for piece in pieces if (times := self.of(piece.shape))]
        if not known:
            return 0.0
        first = max((times for _, times in known), key=lambda times: times.first)
        further = sum(times.further for _, times in known) - first.further
        return first.first + further + sum(times.token * piece.tokens for piece, times in known)


def joins(taken: Sequence[Piece], piece: Piece, times: PassTimes, patience: float) -> bool:
    """Whether a further policy's groups go into the pass with those ``taken``, at least one.

    ``patience`` is how many seconds others may wait longer than for the first one alone. If nothing is known of a
    shape, none join: the first passes are measured alone.
    """
    if len(taken) >= MOST or any(times.of(each.shape) is None for each in (*taken, piece)):
        return False
    together = times.seconds([*taken, piece])
    alone = times.seconds([piece])
    saved = times.seconds(taken) + alone - together
    return saved >= GAIN * alone and together - times.seconds(taken[:1]) <= patience


def patience(intervals: Iterable[float]) -> float:
    """Seconds by which others may wait longer, by the time between two calls of each policy that is known."""
    known = tuple(intervals)
    return max(LEAST_WAIT, WAIT * sum(known) / len(known)) if known else LEAST_WAIT


def moving_mean(mean: float, newest: float) -> float:
    """A moving mean, with one value more."""
    return mean + NEWEST * (newest - mean)
