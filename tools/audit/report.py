"""What a check found: what is proven, what is wrong, and what nobody can know any more."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

MOST_SHOWN = 40
"""Problems that are printed; one mistake may show itself a thousand times."""


@dataclass
class Report:
    """Collects findings; ``where`` below is a task, with a step or group."""

    proven: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    largest: dict[str, float] = field(default_factory=dict)
    """The largest difference that was found acceptable, by what was compared."""

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
        """Something that cannot be checked, and why."""
        self.unknown[f"{what}: {why}"] += 1

    def lines(self) -> list[str]:
        """For people: problems first."""
        shown = [f"WRONG    {problem}" for problem in self.problems[:MOST_SHOWN]]
        if len(self.problems) > MOST_SHOWN:
            shown.append(f"WRONG    and {len(self.problems) - MOST_SHOWN} more.")
        shown += [f"proven   {what}: {count:,}{self._within(what)}" for what, count in sorted(self.proven.items())]
        shown += [f"unknown  {what}: {count:,}" for what, count in sorted(self.unknown.items())]
        verdict = f"{len(self.problems)} problems." if self.problems else "Nothing is wrong."
        return [*shown, verdict]

    def _within(self, what: str) -> str:
        return f" (largest difference {self.largest[what]:.1e})" if what in self.largest else ""
