"""What a home has counted in all, for ``/metrics``: tasks, tokens, steps, versions, and what keys have used.

Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..shown_state import shown_state
from .reader import Reader

_USED = "FROM usage u JOIN tasks t ON t.id = u.task GROUP BY t.tenant, u.stage"
_TOTALS = f"""
SELECT 'tasks' AS what, {shown_state("t")} AS of, '' AS part, count(*) AS value FROM tasks t GROUP BY of
UNION ALL SELECT 'tokens', t.tenant, u.stage, sum(u.tokens) {_USED}
UNION ALL SELECT 'seconds', t.tenant, u.stage, total(u.seconds) {_USED}
UNION ALL SELECT 'steps', t.tenant, '', sum(p.step) FROM tasks t JOIN policies p ON p.task = t.id
    WHERE t.kind = 'train' GROUP BY t.tenant
UNION ALL SELECT 'versions', state, '', count(*) FROM versions GROUP BY state
UNION ALL SELECT 'keys', CASE WHEN revoked IS NULL THEN 'valid' ELSE 'revoked' END AS state, '', count(*)
    FROM api_keys GROUP BY state
UNION ALL SELECT 'requests', tenant, '', sum(requests) FROM api_keys GROUP BY tenant
UNION ALL SELECT 'api tokens', tenant, 'in', sum(tokens_in) FROM api_keys GROUP BY tenant
UNION ALL SELECT 'api tokens', tenant, 'out', sum(tokens_out) FROM api_keys GROUP BY tenant
"""


@dataclass(frozen=True)
class Total:
    """One number."""

    what: str
    """tasks, tokens, seconds, steps, versions, keys, requests or api tokens"""
    of: str
    """A state of tasks, versions or keys; else a tenant. Hostile text."""
    part: str
    """The stage of tokens and seconds; ``in`` or ``out`` for the API's tokens; else empty."""
    value: float


def totals(reader: Reader) -> list[Total]:
    """All of them, by one query."""
    return [Total(*row) for row in reader.all(_TOTALS)]
