"""Check: the environment is quick enough that the model need not wait for it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from .finding import Finding

CHECK = "latency"
SLOW_TURN = 1.0
"""Seconds of the median turn from which an environment is slow."""
SLOWEST_TURN = 5.0
SLOW_START = 10.0


def judge(start: float, first: float, turns: Sequence[float]) -> list[Finding]:
    """Findings on seconds: ``start`` until the process served, ``first`` until the first prompt, and for each turn."""
    findings = []
    begin = f"Its process takes {_spoken(start)} to start and {_spoken(first)} to its first prompt"
    if start + first > SLOW_START:
        advice = "Every edit and every restart waits for that; load less, or load it when it is first needed."
        findings.append(Finding(CHECK, "warning", f"{begin}. {advice}"))
    else:
        findings.append(Finding(CHECK, "note", f"{begin}."))
    if not turns:
        return findings
    middle, worst = statistics.median(turns), max(turns)
    text = f"A turn takes {_spoken(middle)} of its own time (median of {len(turns)}), {_spoken(worst)} at worst"
    if middle > SLOW_TURN or worst > SLOWEST_TURN:
        advice = "Every episode waits for that at every turn: do less in it, or prepare it in setup."
        findings.append(Finding(CHECK, "warning", f"{text}. {advice}"))
    else:
        findings.append(Finding(CHECK, "note", f"{text}."))
    return findings


def _spoken(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.{0 if seconds >= 0.01 else 1}f} ms"
