"""The groups of a step: what was asked, the members' rewards, and what they answered."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from textual.content import Content

from marlaas.engine.store import EVAL, GroupSummary

from ...rollouts.answers import Prompts, answers, answers_within
from ...rollouts.marks import age, marks, numbers
from ...words.format import cells, line, pad
from ..paged_view import OpenReader
from ..virtual_list import GUTTER, VirtualList
from .heading import heading

_WITH_NUMBERS, _WITH_AGE, _WITH_VERSION = 60, 100, 130
"""From so many cells on there is room for mean and spread; instance and staleness; the environment's version."""
_NUMBERS, _AGE, _VERSION, GAP = 11, 15, 10, "  "
"""Cells of these columns, and what stands between two."""


class GroupList(VirtualList[GroupSummary | str]):
    """Groups in the order of their numbers; a row of text stands for all groups."""

    def __init__(self, open_reader: OpenReader, **options: Any) -> None:
        super().__init__(open_reader, **options)
        self.prompts = Prompts()
        self._title = ""

    def rows_came(self, ids: Collection[int]) -> None:
        """Look what the prompts have in common."""
        self.prompts.see(row.prompt for row in self.pages.among(ids) if isinstance(row, GroupSummary))
        super().rows_came(ids)
        self._name_columns()

    def row_text(self, row: GroupSummary | str, width: int) -> Content:
        """The line of a group."""
        if isinstance(row, str):
            return Content.styled(row, "$text-muted")
        label = f"{line(row.suite, 12) or 'prompt'} {row.number}" if row.split == EVAL else f"{row.number}"
        label = pad(label, _label(row))
        if not row.members:
            return Content.styled(f"{label} skipped: had no turn", "$text-muted")
        asked, signs, replies, more = self._places(row, width)
        shown = marks(row.members)
        rewards = pad(numbers(row), _NUMBERS, right=True) + GAP if width >= _WITH_NUMBERS else ""
        ending = f"  {pad(f'i{row.instance}', 6)}{pad(age(row), 7, right=True)}" if width >= _WITH_AGE else ""
        ending += f"  {pad(line(row.environment_version, 8), 8)}" if width >= _WITH_VERSION else ""
        room = more - replies
        return Content.assemble(
            (f"{label} ", "$text-muted"),
            f"{pad(self.prompts.within(row.prompt, signs - asked - 1), signs - asked - 1)} ",
            *shown,
            f"{' ' * (_signs(row) - sum(cells(sign) for sign, _ in shown))}{GAP}",
            (rewards, ""),
            *_filled(answers_within(answers(row.members), room), room if ending else 0),
            (ending, "$text-muted"),
        )

    def _places(self, row: GroupSummary, width: int) -> tuple[int, int, int, int]:
        """Where a row's prompt, signs, replies and what comes behind them begin."""
        asked = _label(row) + 1
        taken = _signs(row) + len(GAP) + (_NUMBERS + len(GAP) if width >= _WITH_NUMBERS else 0)
        ending = (_AGE if width >= _WITH_AGE else 0) + (_VERSION if width >= _WITH_VERSION else 0)
        room = width - asked - 1 - taken - ending
        own = room * 2 // 5 if width >= _WITH_NUMBERS else room // 3
        signs = asked + max(1, min(self.prompts.longest, own)) + 1
        return asked, signs, signs + taken, max(signs + taken, width - ending)

    def call(self, title: str) -> None:
        """Name the list, and with it its columns."""
        self._title = title
        self._name_columns()

    def on_resize(self) -> None:
        """Name the columns at their new places."""
        super().on_resize()
        self._name_columns()

    def _name_columns(self) -> None:
        first = next(
            (row for row in map(self.pages.row, (1, 2)) if isinstance(row, GroupSummary) and row.members), None
        )
        self.border_title = Content(self._title)
        if first is not None:
            width = self.scrollable_content_region.width - GUTTER
            _, signs, replies, more = self._places(first, width)
            mean = (signs + _signs(first) + len(GAP), "mean") if width >= _WITH_NUMBERS else (0, "")
            ending = [(more + len(GAP), "instance")] if width >= _WITH_AGE else []
            self.border_title = Content(
                heading((-GUTTER, self._title), (signs, "rewards"), mean, (replies, "replies"), *ending)
            )


def _label(row: GroupSummary) -> int:
    """Cells of the number of a group."""
    return 9 if row.split == EVAL else 5


def _signs(row: GroupSummary) -> int:
    """Cells of the signs of its members."""
    return max(8, sum(cells(sign) for sign, _ in marks(row.members)))


def _filled(pieces: list[tuple[str, str]], width: int) -> list[tuple[str, str]]:
    """Pieces with spaces behind them, up to a width."""
    return [*pieces, (" " * max(0, width - sum(cells(text) for text, _ in pieces)), "")]
