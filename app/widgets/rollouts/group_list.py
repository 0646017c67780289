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
from ..virtual_list import VirtualList

_WITH_NUMBERS, _WITH_AGE, _WITH_VERSION = 60, 100, 130
"""From so many cells on there is room for mean and spread; instance and staleness; the environment's version."""


class GroupList(VirtualList[GroupSummary | str]):
    """Groups in the order of their numbers; a row of text stands for all groups."""

    def __init__(self, open_reader: OpenReader, **options: Any) -> None:
        super().__init__(open_reader, **options)
        self.prompts = Prompts()

    def rows_came(self, ids: Collection[int]) -> None:
        """Look what the prompts have in common."""
        self.prompts.see(row.prompt for row in self.pages.among(ids) if isinstance(row, GroupSummary))
        super().rows_came(ids)

    def row_text(self, row: GroupSummary | str, width: int) -> Content:
        """The line of a group."""
        if isinstance(row, str):
            return Content.styled(row, "$text-muted")
        label = f"{line(row.suite, 12) or 'prompt'} {row.number}" if row.split == EVAL else f"{row.number}"
        label = pad(label, 9 if row.split == EVAL else 5)
        if not row.members:
            return Content.styled(f"{label} skipped: had no turn", "$text-muted")
        signs = marks(row.members)
        fill = " " * max(0, 8 - sum(cells(sign) for sign, _ in signs))
        rewards = pad(numbers(row), 11, right=True) + "  " if width >= _WITH_NUMBERS else ""
        more = f"  {pad(f'i{row.instance}', 6)}{pad(age(row), 7, right=True)}" if width >= _WITH_AGE else ""
        more += f"  {pad(line(row.environment_version, 8), 8)}" if width >= _WITH_VERSION else ""
        room = width - cells(label) - sum(cells(sign) for sign, _ in signs) - cells(fill + rewards + more) - 4
        asked = max(1, min(self.prompts.longest, room * 2 // 5))
        return Content.assemble(
            (f"{label} ", "$text-muted"),
            f"{pad(self.prompts.within(row.prompt, asked), asked)} ",
            *signs,
            f"{fill}  ",
            (rewards, ""),
            *_filled(answers_within(answers(row.members), room - asked), room - asked if more else 0),
            (more, "$text-muted"),
        )


def _filled(pieces: list[tuple[str, str]], width: int) -> list[tuple[str, str]]:
    """Pieces with spaces behind them, up to a width."""
    return [*pieces, (" " * max(0, width - sum(cells(text) for text, _ in pieces)), "")]
