"""The groups of a step: the instance, the members' rewards and their spread, the staleness."""

from __future__ import annotations

from textual.content import Content

from marlaas.engine.store import EVAL, GroupSummary

from ...rollouts.marks import age, marks, numbers
from ...words.format import line, pad
from ..virtual_list import VirtualList

_WITH_VERSION = 48
"""From this many cells on there is room for the environment's version."""


class GroupList(VirtualList[GroupSummary | str]):
    """Groups in the order of their numbers; a row of text stands for all groups."""

    def row_text(self, row: GroupSummary | str, width: int) -> Content:
        """The line of a group."""
        if isinstance(row, str):
            return Content.styled(row, "$text-muted")
        label = f"{line(row.suite, 12) or 'prompt'} {row.number}" if row.split == EVAL else f"{row.number}"
        if not row.members:
            return Content.styled(f"{pad(label, 9 if row.split == EVAL else 6)}skipped: had no turn", "$text-muted")
        version = f" {line(row.environment_version, 8)}" if width >= _WITH_VERSION else ""
        return Content.assemble(
            (pad(label, 9 if row.split == EVAL else 6), ""),
            (pad(f"i{row.instance}", 6), "$text-muted"),
            *((mark, style) for mark, style in marks(row.members)),
            " " * max(0, 8 - len(row.members)),
            pad(numbers(row), 11, right=True),
            (pad(age(row), 7, right=True), "$text-muted"),
            (version, "$text-muted"),
        )
