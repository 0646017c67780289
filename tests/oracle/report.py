"""What a check found: what is proven, what is wrong, what was lost, and what cannot be known."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

MOST_SHOWN = 40
"""Findings of one kind that are printed: one mistake may show up a thousand times."""


@dataclass
class Report:
    """Collects findings; ``where`` below is a task, with a step or group."""

    proven: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    """What contradicts itself, or is not as it should be."""
    lost: list[str] = field(default_factory=list)
    """What was made once and is gone, as the home itself says."""
    spare: list[str] = field(default_factory=list)
    """What lies in the home and is needed by nothing."""
    largest: dict[str, float] = field(default_factory=dict)
    """The largest difference within its tolerance, by what was compared."""

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong and nothing was lost."""
        return not self.problems and not self.lost

    def check(self, holds: bool, what: str, where: str, problem: str) -> bool:
        """Count one proof of ``what``, or note the problem; returns ``holds``."""
        if holds:
            self.proven[what] += 1
        else:
            self.problems.append(f"{where}: {problem}")
        return holds

    def close(self, difference: float, tolerance: float, what: str, where: str) -> bool:
        """Whether a difference stays within its tolerance; one that is not a number does not."""
        if difference <= tolerance:
            self.largest[what] = max(difference, self.largest.get(what, 0.0))
        return self.check(
            difference <= tolerance, what, where, f"{what} differ by {difference:.2g}; {tolerance:g} is allowed."
        )

    def skip(self, what: str, why: str) -> None:
        """Note something that cannot be checked, and why."""
        self.unknown[f"{what}: {why}"] += 1

    def lines(self) -> list[str]:
        """The findings as lines, problems first."""
        shown = [*_shown("WRONG", self.problems), *_shown("LOST", self.lost), *_shown("spare", self.spare)]
        shown += [f"proven   {what}: {count:,}{self._within(what)}" for what, count in sorted(self.proven.items())]
        shown += [f"unknown  {what}: {count:,}" for what, count in sorted(self.unknown.items())]
        return [*shown, self.verdict()]

    def verdict(self) -> str:
        """The findings in one sentence."""
        problems = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        losses = "1 loss" if len(self.lost) == 1 else f"{len(self.lost)} losses"
        if self.problems and self.lost:
            return f"{problems}, {losses}."
        return f"{problems}." if self.problems else f"{losses}." if self.lost else "Nothing is wrong."

    def _within(self, what: str) -> str:
        return f" (largest difference {self.largest[what]:.1e})" if what in self.largest else ""


def _shown(word: str, findings: list[str]) -> list[str]:
    shown = [f"{word:<8} {finding}" for finding in findings[:MOST_SHOWN]]
    return shown if len(findings) <= MOST_SHOWN else [*shown, f"{word:<8} and {len(findings) - MOST_SHOWN} more."]
