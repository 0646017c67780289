"""Findings about environments in words: a mark for a table, a line for each.

Shared by the command line and the terminal application. Takes rows, gives plain safe text.
"""

from __future__ import annotations

from collections.abc import Sequence

from marlaas.engine.environments import Finding, Level, count
from marlaas.engine.store import EnvironmentRow

from ..format import line

MARKS: dict[Level, str] = {"error": "✗", "warning": "!", "note": "·"}
_CHECK_WIDTH = 11


def spoken(finding: Finding) -> str:
    """One finding as a line."""
    return f"{MARKS[finding.level]} {line(finding.check, _CHECK_WIDTH):<{_CHECK_WIDTH}} {line(finding.message)}"


def mark(environment: EnvironmentRow) -> str:
    """The mark for an environment's findings in a table; empty before it was checked."""
    if environment.checked is None:
        return ""
    errors, warnings = (count(environment.findings, level) for level in ("error", "warning"))
    if errors:
        return f"{MARKS['error']} {errors}"
    return f"{MARKS['warning']} {warnings}" if warnings else "✓"


def troubles(findings: Sequence[Finding]) -> list[Finding]:
    """The findings that somebody should mend."""
    return [finding for finding in findings if finding.level != "note"]


def verdict(findings: Sequence[Finding]) -> str:
    """All of them in a few words."""
    counts = [_counted(count(findings, level), level) for level in ("error", "warning")]
    return " and ".join(text for text in counts if text) or "nothing wrong"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}" if number else ""
