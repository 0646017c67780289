"""Which play begins next, and for whom: the lowest number for all who need it, or for some where they have waited.

All policies of a task number their groups alike, and a play is cheapest for all at once. So a policy waits for one
whose bound does not allow the number yet. But it does not wait for ever: once it has had nothing under way for as long
as its groups take, it goes on without the others. In such a play these speak as they are served and learn nothing; the
number is played again for them when their bound allows it.

The wait is as long as what it would save takes, the playing of one more group. Whoever decides so, not knowing how long
the others will need, spends at most twice the time of one who knew (the rule of the ski rental: Karlin, Manasse,
Rudolph and Sleator, "Competitive snoopy caching", Algorithmica 3, 1988). Pure, but for the clock that is handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

LEAST = 1.0
"""Seconds that a policy waits in any case: what is shorter comes and goes with the load of the machine."""
WEIGHT = 0.2
"""Of the newest group in the running mean of how long a policy's groups take."""


@dataclass(frozen=True)
class Wish:
    """The next group that a policy needs."""

    policy: str
    number: int
    allowed: bool
    """Whether the policy's bound on staleness lets it begin."""


@dataclass(frozen=True)
class NextPlay:
    """A play that may begin."""

    number: int
    policies: frozenset[str]
    """Those that are trained on it."""


def next_play(wishes: Sequence[Wish], alone: Mapping[str, int]) -> NextPlay | None:
    """The play to begin, or None where all have to wait.

    ``alone``: by policy, the number below which it need not wait for others.
    """
    first = min((wish.number for wish in wishes), default=0)
    for number in sorted({wish.number for wish in wishes}):
        here = [wish for wish in wishes if wish.number == number]
        ready = frozenset(wish.policy for wish in here if wish.allowed)
        if number == first and len(ready) == len(here):
            return NextPlay(number, ready)
        going = frozenset(policy for policy in ready if number < alone.get(policy, 0))
        if going:
            return NextPlay(number, going)
    return None


class Waits:
    """How long policies have had nothing under way while only others kept them from going on."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}
        self._takes: dict[str, float] = {}
        """By policy, seconds that a group takes."""

    def took(self, policy: str, seconds: float) -> None:
        """A group of a policy closed after so long."""
        before = self._takes.get(policy, seconds)
        self._takes[policy] = before + WEIGHT * (seconds - before)

    def left(self, policy: str, starved: bool) -> float:
        """Seconds that a policy still has to wait before it goes on alone; ``starved``: whether it has to at all."""
        if not starved:
            self._since.pop(policy, None)
            return inf
        now = self._clock()
        return max(0.0, self._since.setdefault(policy, now) + max(LEAST, self._takes.get(policy, inf)) - now)
