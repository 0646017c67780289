"""The trend: every step and held-out evaluation of a task, with its mean reward as a bar."""

from __future__ import annotations

import math
from collections.abc import Mapping

from textual.content import Content

from marlaas.engine.store import EVAL, StepSummary

from ...lists.paging import Listing
from ...rollouts.answers import FAILED
from ...words.format import bar, count, pad, score
from ..virtual_list import VirtualList

_LABEL, _REST, _GROUPS = 10, 22, 8
_FINE = 1000


class StepList(VirtualList[StepSummary]):
    """Newest first; the first line stands for all steps."""

    _low, _high = 0.0, 1.0

    def show_steps(self, steps: Mapping[int, StepSummary]) -> None:
        """Show steps by key; the bars cover 0 to 1, or more where rewards do."""
        rewards = [s.reward for s in steps.values() if s.reward is not None and math.isfinite(s.reward)]
        self._low, self._high = min([0.0, *rewards]), max([1.0, *rewards])
        self.show(Listing.of(steps))

    def row_text(self, row: StepSummary, width: int) -> Content:
        """The line of a step: its reward as a bar and as a number, how many groups, how many failures."""
        held_out = row.split == EVAL
        colour = "$text-warning" if held_out else "$text-primary"
        groups = count(row.groups)
        if not row.split:  # named once, in the first line
            groups += " group" if row.groups == 1 else " groups"
        return Content.assemble(
            (pad(_label(row), _LABEL - 1, right=bool(row.split)), "$text-warning" if held_out else ""),
            " ",
            (self._bar(row.reward, max(0, width - _LABEL - _REST + _GROUPS - max(_GROUPS, len(groups)))), colour),
            pad(score(row.reward) if row.reward is not None else "", 6, right=True),
            (pad(groups, _GROUPS, right=True), "$text-muted"),
            "  ",
            (f"{FAILED}{count(row.failures)}" if row.failures else "", "$text-error"),
        )

    def _bar(self, reward: float | None, room: int) -> str:
        if reward is None or not math.isfinite(reward):
            return " " * room
        return bar(round(_FINE * (reward - self._low) / (self._high - self._low)), _FINE, room)


def _label(row: StepSummary) -> str:
    if not row.split:
        return "all steps"
    return "waiting" if row.step is None else f"◆ {row.step}" if row.split == EVAL else str(row.step)
