"""A finding of a check: one sentence for the author of an environment. Standard library only.

A sentence may quote a plugin, which can fail in endless ways: length and number are bounded.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Level = Literal["error", "warning", "note"]
"""error: training goes wrong; warning: it may, or may be useless; note: a figure."""
LEVELS: tuple[Level, ...] = ("error", "warning", "note")
LONGEST = 2000
MOST = 100


@dataclass(frozen=True)
class Finding:
    """One thing that a check found."""

    check: str
    level: Level
    message: str
    """The problem, its place, and the repair. It may quote the plugin: hostile text."""


def count(findings: Collection[Finding], level: Level) -> int:
    """Number of findings of that level."""
    return sum(finding.level == level for finding in findings)


def bounded(findings: Sequence[Finding]) -> list[Finding]:
    """The first (worst) findings, with long messages cut; the last one counts those left out."""
    kept = [replace(finding, message=_cut(finding.message)) for finding in findings[:MOST]]
    if len(findings) > MOST:
        kept.append(Finding("check", "note", f"{len(findings) - MOST:,} more findings are left out."))
    return kept


def _cut(message: str) -> str:
    if len(message) <= LONGEST:
        return message
    return f"{message[:LONGEST]}… ({len(message) - LONGEST:,} more characters)"
