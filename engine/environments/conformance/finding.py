"""What a check found: one sentence for the author of an environment. Standard library only.

A sentence may quote what a plugin said, and a plugin may fail in endless ways: what is kept is bounded.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Level = Literal["error", "warning", "note"]
"""error: training on it goes wrong; warning: it may, or for nothing; note: a figure worth knowing."""
LEVELS: tuple[Level, ...] = ("error", "warning", "note")
LONGEST = 2000
"""Most characters of a message that are kept."""
MOST = 100
"""Most findings of one run that are kept."""


@dataclass(frozen=True)
class Finding:
    """One thing that a check found."""

    check: str
    """Name of the check, one word."""
    level: Level
    message: str
    """What, where, and how to repair it. It may quote the plugin: hostile text."""


def count(findings: Collection[Finding], level: Level) -> int:
    """How many are of that level."""
    return sum(finding.level == level for finding in findings)


def bounded(findings: Sequence[Finding]) -> list[Finding]:
    """The first findings, which are the worst, with long messages cut; the last says how many are left out."""
    kept = [replace(finding, message=_cut(finding.message)) for finding in findings[:MOST]]
    if len(findings) > MOST:
        kept.append(Finding("check", "note", f"{len(findings) - MOST:,} more findings are left out."))
    return kept


def _cut(message: str) -> str:
    if len(message) <= LONGEST:
        return message
    return f"{message[:LONGEST]}… ({len(message) - LONGEST:,} more characters)"
