"""What a check has to say: one sentence for the author of an environment. Standard library only; knows no check."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

Level = Literal["error", "warning", "note"]
"""error: training on it goes wrong; warning: it may, or for nothing; note: a figure worth knowing."""
LEVELS: tuple[Level, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """One thing that a check found."""

    check: str
    """Name of the check, one word."""
    level: Level
    message: str
    """What, where, and how to mend it. It may quote the plugin: hostile text."""


def count(findings: Collection[Finding], level: Level) -> int:
    """How many are of that level."""
    return sum(finding.level == level for finding in findings)
