"""What went wrong in a policy's learning, as a row, and the SQL by which queries of tasks have it.

Standard library only.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

FINDINGS = (
    "(SELECT json_group_array(json_object('policy', q.name, 'code', f.code, 'step', f.step, 'evidence',"
    " json(f.evidence), 'rollouts', json(f.rollouts), 'holds', f.holds, 'created', f.created))"
    " FROM findings f JOIN policies q ON q.id = f.policy WHERE q.task = t.id)"
)
"""SQL for the findings about a task ``t``, as JSON."""


@dataclass(frozen=True)
class FindingRow:
    """A sign that the learning of a policy goes wrong."""

    policy: str
    """The policy's name in its task."""
    step: int
    """At which it was found."""
    code: str
    """Its name in task files, such as ``entropy_collapse``."""
    evidence: dict[str, float] = field(default_factory=dict)
    """The figures that show it, by name; ``app/words/learning.py`` has their sentences."""
    rollouts: tuple[int, ...] = ()
    """Ids of up to three conversations that show it."""
    holds: bool = True
    """Whether it was still so at the newest step or evaluation."""
    created: float = 0.0


def findings_of(text: str | None) -> tuple[FindingRow, ...]:
    """The findings that ``FINDINGS`` gave, the newest first."""
    rows = (
        FindingRow(**{**row, "holds": bool(row["holds"]), "rollouts": tuple(row["rollouts"])})
        for row in json.loads(text or "[]")
    )
    return tuple(sorted(rows, key=lambda row: (-row.step, -row.created, row.code)))
