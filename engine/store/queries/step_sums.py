"""What the steps of policies sum up to: tokens, and episodes that were lost. Standard library only.

Screens ask every second, and a long run has thousands of steps. So a sum is kept and later steps are added, unless the
step that it goes up to has been voided since.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass

_METRICS = ("tokens", "lost", "errors")
_SQL = f"""SELECT {", ".join(f"total(value) FILTER (WHERE name = '{name}')" for name in _METRICS)} FROM metrics
WHERE policy = ? AND name IN ('{"', '".join(_METRICS)}') AND step > ? AND step <= ?"""


@dataclass(frozen=True)
class Sums:
    """Sums over a policy's steps."""

    tokens: int = 0
    """Tokens that it was trained on."""
    lost: int = 0
    """Episodes that failed each time that they were played."""
    kept_lost: int = 0
    """Those of them that are members of a group all the same."""

    def and_more(self, more: Iterable[float]) -> Sums:
        """With the sums of later steps."""
        return Sums(*(int(before + value) for before, value in zip(astuple(self), more, strict=True)))


@dataclass(frozen=True)
class _Known:
    number: int
    """The last step that is in the sums."""
    created: float
    """When that step was made: after a rollback, another step gets its number."""
    sums: Sums


class StepSums:
    """Keeps sums for each policy. ``query`` runs a query and returns its rows."""

    def __init__(self, query: Callable[..., list[sqlite3.Row]]) -> None:
        self._query = query
        self._known: dict[int, _Known] = {}

    def of(self, policy: int | None, step: int) -> Sums:
        """The sums over a policy's steps up to ``step``."""
        if policy is None or not step:
            return Sums()
        known = self._known.get(policy)
        if known is not None and (known.number > step or self._created(policy, known.number) != known.created):
            known = None
        after, before = (known.number, known.sums) if known else (0, Sums())
        if after == step:
            return before
        sums, created = before.and_more(self._query(_SQL, policy, after, step)[0]), self._created(policy, step)
        if created is not None:
            self._known[policy] = _Known(step, created, sums)
        return sums

    def _created(self, policy: int, step: int) -> float | None:
        rows = self._query("SELECT created FROM steps WHERE policy = ? AND number = ?", policy, step)
        return rows[0][0] if rows else None
