"""Tokens that policies were trained on, summed up as their steps come. Standard library only.

Screens ask every second, and a long run has thousands of steps: what was summed once is not summed again, unless the
step up to which it was is gone, or another has its number.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class _Sum:
    number: int
    """The step up to which it goes."""
    created: float
    """When that step was made: after a rollback, another one gets its number."""
    tokens: float


class TokenSums:
    """Remembers a sum for each policy. ``query`` gives the rows of one short query."""

    def __init__(self, query: Callable[..., list[sqlite3.Row]]) -> None:
        self._query = query
        self._known: dict[int, _Sum] = {}

    def of(self, policy: int | None, step: int) -> int:
        """Of a policy that has made so many steps."""
        if policy is None or not step:
            return 0
        known = self._known.get(policy)
        if known is not None and (known.number > step or self._created(policy, known.number) != known.created):
            known = None
        after, before = (known.number, known.tokens) if known else (0, 0.0)
        if after == step:
            return int(before)
        more = self._query(
            "SELECT total(value) FROM metrics WHERE policy = ? AND name = 'tokens' AND step > ? AND step <= ?",
            policy,
            after,
            step,
        )
        tokens, created = before + more[0][0], self._created(policy, step)
        if created is not None:
            self._known[policy] = _Sum(step, created, tokens)
        return int(tokens)

    def _created(self, policy: int, step: int) -> float | None:
        rows = self._query("SELECT created FROM steps WHERE policy = ? AND number = ?", policy, step)
        return rows[0][0] if rows else None
