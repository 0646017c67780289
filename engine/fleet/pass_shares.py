"""By how much a tenant may lengthen a shared pass for those that have had less of the trainer than it.

A clock alone cannot share out passes in which the calls of many go together. Two passes that take turns would hold the
calls of all, so that each policy had one step in the time of both, whatever its tenant's share is: a tenant with one
task as much as each of another's eight, and weights would mean nothing. So a tenant that has had more than another,
by weight, makes passes that are short enough for the other: measured by the time that it usually is away between an
answer and its next call. One that calls rarely loses little by a long pass, and nobody is held up for its sake.
Pure but for a clock.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from .fusing import WAIT, moving_mean

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
        """Calls that wait or are under way, of tenants that have any."""
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
        """A tenant had so many seconds, divided by its weight."""
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
