"""What a benchmark returns: repeated figures, ours beside theirs, and the ratio with its spread.

Every benchmark is a module with ``measure(quick: bool) -> Section``. Both sides of a row are measured in one go, turn
by turn on the same machine, so that value i of one side and value i of the other saw the same noise; ratios are taken
pair by pair. Pure data; knows nothing of what is measured or of how it is printed.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median


class Unmeasurable(Exception):
    """This machine lacks what a benchmark measures; the text is a sentence on what."""


@dataclass(frozen=True)
class Series:
    """Repetitions of one measurement."""

    values: tuple[float, ...]

    @property
    def middle(self) -> float:
        """The median: what is quoted."""
        return median(self.values)

    @property
    def low(self) -> float:
        """The smallest value."""
        return min(self.values)

    @property
    def high(self) -> float:
        """The largest value."""
        return max(self.values)


@dataclass(frozen=True)
class Row:
    """One thing that was measured. ``theirs`` is missing where only a limit exists, which ``goal`` then names."""

    what: str
    unit: str
    ours: Series
    theirs: Series | None = None
    other: str = ""
    """Who ``theirs`` is: "TRL 1.16", "plain llama.cpp", "torch loop"."""
    higher_is_better: bool = False
    goal: str = ""
    """What was to be reached, in words: "3x, aim at 5x", "under 0.3 ms"."""

    @property
    def ratio(self) -> Series | None:
        """How many times better ours is, pair by pair: 2 is twice as good, below 1 is worse."""
        if self.theirs is None:
            return None
        pairs = zip(self.ours.values, self.theirs.values, strict=True)
        return Series(tuple(ours / theirs if self.higher_is_better else theirs / ours for ours, theirs in pairs))


@dataclass(frozen=True)
class Section:
    """One benchmark's outcome."""

    name: str
    """The benchmark's name, and that of its files."""
    title: str
    method: str
    """Markdown: what ran, how often, with which settings; enough to judge the rows by."""
    rows: tuple[Row, ...]
    remarks: str = ""
    """Markdown below the table: a profile, what fell short and why."""
