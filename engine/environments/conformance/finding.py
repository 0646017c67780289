"""A finding: one sentence for an environment's author. Standard library only."""

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
    """A result of a check."""

    check: str
    level: Level
    message: str
    """May quote the plugin: hostile text."""


def count(findings: Collection[Finding], level: Level) -> int:
    """Findings of that level."""
    return sum(finding.level == level for finding in findings)


def bounded(findings: Sequence[Finding]) -> list[Finding]:
    """The worst findings, with long messages cut, and the number of others."""
    kept = [replace(finding, message=_cut(finding.message)) for finding in findings[:MOST]]
    if len(findings) > MOST:
        kept.append(Finding("check", "note", f"{len(findings) - MOST:,} more findings are left out."))
    return kept


def _cut(message: str) -> str:
    if len(message) <= LONGEST:
        return message
    return f"{message[:LONGEST]}… ({len(message) - LONGEST:,} more characters)"
