"""What a benchmark returns: repeated figures, ours next to theirs, and the ratio with its spread.

Every benchmark is a module with ``measure(quick: bool) -> Section``. Both sides of a row are measured in one go, turn
by turn on the same machine, so that value i of one side and value i of the other saw the same noise; ratios are taken
pair by pair. Pure data; knows nothing of what is measured or of how it is printed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median, quantiles

from .pictures import Picture


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

    @property
    def spread(self) -> float | None:
        """90th − 10th percentile; nobody knows it of a single value."""
        if len(self.values) < 2:
            return None
        if self.low == self.high:
            return 0.0
        deciles = quantiles(self.values, n=10, method="inclusive")
        return deciles[8] - deciles[0]

    @property
    def noise(self) -> float | None:
        """The spread as a share of the median."""
        spread = self.spread
        if not spread:
            return spread
        return spread / abs(self.middle) if self.middle else math.inf


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
    interval: bool = False
    """The values are the ends and the middle of an interval of confidence, not repetitions."""

    @property
    def ratio(self) -> Series | None:
        """How many times better ours is, pair by pair: 2 is twice as good, below 1 is worse."""
        if self.theirs is None:
            return None
        pairs = zip(self.ours.values, self.theirs.values, strict=True)
        return Series(tuple(ours / theirs if self.higher_is_better else theirs / ours for ours, theirs in pairs))

    @property
    def noise(self) -> float:
        """The greatest of either side and of their ratio; 0 if nothing was repeated.

        A percentage wavers by points of its whole: by its own size the smallest would never be quiet.
        """
        if self.interval:
            return 0.0
        sides = [one for one in (self.ours, self.theirs) if one]
        own = [(one.spread or 0.0) / 100 if self.unit.startswith("%") else one.noise or 0.0 for one in sides]
        return max(*own, (self.ratio.noise or 0.0) if self.ratio else 0.0)


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
    pictures: tuple[Picture, ...] = ()
    timed: bool = True
    """Whether a busy machine moves its figures, as it does times and rates; bytes it leaves alone."""
