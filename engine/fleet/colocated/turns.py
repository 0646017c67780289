"""Who may compute on a device that a sampler and a trainer share.

Each computes in passes (a step of the sampler, a batch of the trainer), which nothing interrupts. Between two passes
the holder goes on until it has had its slice and as much time as the other, or has nothing to do; then whoever waits
goes. A slice is long enough that switching takes a small share of the time, so that neither starves and little is lost.
Pure: times come in, and nothing here waits (``gate`` does).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

Party = Literal["sampler", "trainer"]

SHARE = 0.1
"""Largest share of the time that switches may take."""
LATEST = 0.5
"""Weight of the latest switch in the moving mean of what a switch costs."""


@dataclass(frozen=True)
class DeviceTurns:
    """The state of the device; each method gives the next one."""

    slice: float
    """Seconds that a party may go on for while the other waits, at least."""
    holder: Party | None = None
    """Who computed last, and has its weights on the device; None before the first turn."""
    since: float = 0.0
    """Time at which it got the device."""
    begun: float | None = None
    """Time at which the running pass began; None while none runs."""
    more: bool = False
    """Whether the holder has further passes to come."""
    waiting: frozenset[Party] = frozenset()
    lead: float = 0.0
    """Seconds by which the sampler is ahead of the trainer, counting time in which the other waited: passes differ in
    length, and mere alternation would give most of the time to the longer ones. Time alone only pays off arrears."""
    cost: float = 0.0
    """Measured seconds of a switch: one party's leaving and the other's coming."""

    @property
    def least(self) -> float:
        """Seconds that a holder with work keeps the device while the other waits, long enough that switches take at
        most ``SHARE`` of the time."""
        return max(self.slice, self.cost * (1.0 - SHARE) / SHARE)

    def delay(self, party: Party, now: float) -> float:
        """Seconds until ``party`` may begin a pass; 0: at once; infinite: not before something has changed."""
        if self.begun is not None:
            return math.inf
        if self.holder is None:
            return 0.0
        left = self._left(self.holder, now)
        if self.holder == party:
            return math.inf if self.waiting - {party} and left == 0.0 else 0.0
        return left

    def wait(self, party: Party) -> DeviceTurns:
        """``party`` wants to begin a pass."""
        return replace(self, waiting=self.waiting | {party})

    def begin(self, party: Party, now: float) -> DeviceTurns:
        """A pass begins. Raises ``ValueError`` where it may not."""
        if self.delay(party, now) > 0.0:
            raise ValueError(f"The {party} may not compute at {now}: {self}.")
        since = self.since if self.holder == party else now
        return replace(self, holder=party, since=since, begun=now, more=True, waiting=self.waiting - {party})

    def end(self, now: float) -> DeviceTurns:
        """The pass that ran has ended."""
        if self.holder is None or self.begun is None:
            return replace(self, begun=None)
        ahead, spent = self._ahead(self.holder), max(0.0, now - self.begun)
        contested = bool(self.waiting - {self.holder})
        ahead = ahead + spent if contested else max(ahead, min(0.0, ahead + spent))
        return replace(self, begun=None, lead=ahead if self.holder == "sampler" else -ahead)

    def rest(self, party: Party) -> DeviceTurns:
        """``party`` has nothing to do, for the moment."""
        return replace(self, more=False) if self.holder == party else self

    def switched(self, seconds: float, now: float) -> DeviceTurns:
        """The device went from one to the other, which took ``seconds``: slice and pass begin at the end of that."""
        cost = seconds if not self.cost else self.cost + LATEST * (seconds - self.cost)
        return replace(self, cost=cost, since=now, begun=now)

    def deserted(self) -> DeviceTurns:
        """The party that was to come could not: neither has the device."""
        return replace(self, holder=None, begun=None, more=False)

    def _left(self, holder: Party, now: float) -> float:
        """Seconds for which the holder goes first, between two passes."""
        if not self.more:
            return 0.0
        return math.inf if self._ahead(holder) < 0.0 else max(0.0, self.since + self.least - now)

    def _ahead(self, party: Party) -> float:
        return self.lead if party == "sampler" else -self.lead
