"""How many tokens policies were trained on. Standard library only.

Screens ask every second, and a long run has thousands of steps. So a sum is kept and later steps are added, unless the
step that it goes up to has been voided since.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class _Sum:
    number: int
    """The last step that is in the sum."""
    created: float
    """When that step was made: after a rollback, another step gets its number."""
    tokens: float


class TokenSums:
    """Keeps a sum for each policy. ``query`` runs a query and returns its rows."""

    def __init__(self, query: Callable[..., list[sqlite3.Row]]) -> None:
        self._query = query
        self._known: dict[int, _Sum] = {}

    def of(self, policy: int | None, step: int) -> int:
        """Tokens that a policy was trained on in its steps up to ``step``."""
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
