"""The trend: every step and held-out evaluation of a task, with its mean reward as a bar."""

from __future__ import annotations

import math
from collections.abc import Mapping

from textual.content import Content

from marlaas.engine.store import EVAL, StepSummary

from ...lists.paging import Listing
from ...rollouts.answers import FAILED
from ...words.format import bar, count, pad, score
from ..virtual_list import GUTTER, VirtualList
from .heading import heading

_LABEL, _REWARD, _GROUPS, _FAILED = 10, 6, 8, 8
"""Cells of the columns beside the bar."""
HELD_OUT = "◆"
_FINE = 1000


class StepList(VirtualList[StepSummary]):
    """Newest first; the first line stands for all steps."""

    _low, _high = 0.0, 1.0
    _about = ""

    def show_steps(self, steps: Mapping[int, StepSummary], about: str = "") -> None:
        """Show steps by key; the bars cover 0 to 1, or more where rewards do. ``about``: of which steps these are."""
        self._about = about
        rewards = [s.reward for s in steps.values() if s.reward is not None and math.isfinite(s.reward)]
        self._low, self._high = min([0.0, *rewards]), max([1.0, *rewards])
        self.show(Listing.of(steps))
        self._name_columns()

    def on_resize(self) -> None:
        """Name the columns at their new places."""
        super().on_resize()
        self._name_columns()

    def _name_columns(self) -> None:
        held_out = any(step.split == EVAL for step in self.rows())
        self.border_title = Content(step_heading(self.scrollable_content_region.width - GUTTER, self._about, held_out))

    def row_text(self, row: StepSummary, width: int) -> Content:
        """The line of a step: its reward as a bar and as a number, how many groups, how many failures."""
        held_out = row.split == EVAL
        colour = "$text-warning" if held_out else "$text-primary"
        return Content.assemble(
            (pad(_label(row), _LABEL - 1, right=bool(row.split)), "$text-warning" if held_out else ""),
            " ",
            (self._bar(row.reward, _bar_room(width)), colour),
            pad(score(row.reward) if row.reward is not None else "", _REWARD, right=True),
            (pad(count(row.groups), _GROUPS, right=True), "$text-muted"),
            "  ",
            (f"{FAILED}{count(row.failures)}" if row.failures else "", "$text-error"),
        )

    def _bar(self, reward: float | None, room: int) -> str:
        if reward is None or not math.isfinite(reward):
            return " " * room
        return bar(round(_FINE * (reward - self._low) / (self._high - self._low)), _FINE, room)


def step_heading(width: int, about: str, held_out: bool) -> str:
    """The names of the columns over rows of ``width`` cells; ``held_out``: whether the list has such evaluations."""
    mean = "mean reward" + about + (f" · {HELD_OUT} held-out" if held_out else "")
    groups = _LABEL + _bar_room(width) + _REWARD + _GROUPS - len("groups")
    return heading((_LABEL - 1 - len("step"), "step"), (_LABEL, mean), (groups, "groups"), (groups + 8, "failed"))


def _bar_room(width: int) -> int:
    return max(0, width - _LABEL - _REWARD - _GROUPS - _FAILED)


def _label(row: StepSummary) -> str:
    if not row.split:
        return "all steps"
    return "waiting" if row.step is None else f"{HELD_OUT} {row.step}" if row.split == EVAL else str(row.step)
