"""The fair shares: how much of both devices' work each tenant had, and who is behind.

What tenants have used of the day is reported again and again; shares of the last minute are shown once its use is
known. Pure, except for what it remembers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from marlaas.engine.store import StandingRow, TenantSeconds

from ...words.format import count, duration, number, share
from .pane import Line, table

WINDOW = 60.0
"""Seconds over which shares are counted."""
SPACING = 5.0
"""Seconds, at least, between two reports that are remembered."""


class UsedLately:
    """What tenants used in about the last minute, from the sums of the day."""

    def __init__(self) -> None:
        self._moments: deque[tuple[float, dict[str, TenantSeconds]]] = deque()

    def add(self, moment: float, used: Sequence[TenantSeconds]) -> tuple[float, list[TenantSeconds]]:
        """The seconds that are looked back on, 0 for all of the day, and what was used in them."""
        sums = {one.tenant: one for one in used}
        while self._moments and (moment - self._moments[0][0] > WINDOW + SPACING or _less(sums, self._moments[0][1])):
            self._moments.popleft()  # too old, or of the day before
        if not self._moments or moment - self._moments[-1][0] >= SPACING:
            self._moments.append((moment, sums))
        then, before = self._moments[0]
        if moment - then < SPACING:
            return 0.0, list(used)
        lately = []
        for one in used:
            had = before.get(one.tenant, TenantSeconds(one.tenant, one.weight, 0.0, 0.0))
            lately.append(TenantSeconds(one.tenant, one.weight, one.rollout - had.rollout, one.training - had.training))
        return moment - then, lately


def _less(now: dict[str, TenantSeconds], before: dict[str, TenantSeconds]) -> bool:
    return any(
        name not in now or now[name].rollout < had.rollout or now[name].training < had.training
        for name, had in before.items()
        if had.rollout or had.training
    )


def shares(used: Sequence[TenantSeconds], standings: Sequence[StandingRow], width: int) -> list[Line]:
    """A line for each tenant, the largest share first."""
    if not used:
        return [(("No tenant has used anything today.", "$text-muted"),)]
    stand = {(one.tenant, one.stage): one for one in standings}
    sampled, trained = sum(one.rollout for one in used), sum(one.training for one in used)
    rows = []
    for one in sorted(used, key=lambda one: (-one.rollout - one.training, one.tenant)):
        lines = [stand.get((one.tenant, stage)) for stage in ("rollout", "training")]
        waiting = sum(standing.waiting for standing in lines if standing)
        rows.append(
            (
                one.tenant,
                number(one.weight, 2),
                share(one.rollout / sampled) if sampled > 0 else "-",
                share(one.training / trained) if trained > 0 else "-",
                str(waiting) if any(lines) else "",
                behind(*lines),
            )
        )
    headers = ("tenant", "weight", "rollout", "training", "waiting", "behind")
    return table(headers, rows, (18, -6, -7, -8, -7, 22), width)


def behind(rollout: StandingRow | None, training: StandingRow | None) -> str:
    """How much less a tenant has had than the one that has had most."""
    if rollout is None and training is None:
        return "idle"
    texts = []
    if rollout is not None and rollout.behind >= 1:
        texts.append(f"{count(round(rollout.behind))} tokens")
    if training is not None and training.behind >= 1e4:
        texts.append(duration(round(training.behind / 1e6, 2)))
    return ", ".join(texts) or "nothing"
