"""How stale the groups of the last steps were, as bars: one line for all, or a line for each staleness."""

from __future__ import annotations

from collections.abc import Mapping

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from ...words.format import BARS, share

_TITLE = "staleness of the last groups, in versions"


class StalenessBars(Widget):
    """A histogram."""

    DEFAULT_CSS = """
    StalenessBars { height: 1; padding: 0 1; }
    """

    ages: reactive[Mapping[int, int]] = reactive({})
    """Number of groups by staleness."""

    def render(self) -> Content:
        """The bars."""
        width, height = self.content_size
        if not self.ages:
            return Content("")
        if height >= 3:
            return Content.assemble((_TITLE, "$text-muted"), "\n", ("\n".join(self._lines(width, height - 1)), ""))
        shares = " ".join(f"{age} {BARS[round(part * (len(BARS) - 1))]} {share(part)}" for age, part in self._shares(8))
        return Content.assemble(("staleness  ", "$text-muted"), shares)

    def _lines(self, width: int, height: int) -> list[str]:
        shares = self._shares(height)
        longest = max(len(str(age)) for age, _ in shares)
        room = max(1, width - longest - 8)
        return [
            f"{age:>{longest}} {BARS[-1] * round(part * room)}{' ' if part else ''}{share(part)}"
            for age, part in shares
        ]

    def _shares(self, most: int) -> list[tuple[str, float]]:
        """Staleness and share of groups; those that are staler than there are lines are summed up."""
        whole = sum(self.ages.values()) or 1
        ages = range(max(self.ages) + 1)
        counts = [(str(age), self.ages.get(age, 0)) for age in ages]
        if len(counts) > most:
            older = sum(groups for _, groups in counts[most - 1 :])
            counts = [*counts[: most - 1], (f"{most - 1}+", older)]
        return [(age, groups / whole) for age, groups in counts]
