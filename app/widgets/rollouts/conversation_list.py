"""The conversations of a group, of a step, of a whole task, or those that a search has found."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from textual.content import Content

from marlaas.engine.store import EVAL, ConversationSummary

from ...rollouts.answers import FAILED, RIGHT, UNPAID, WRONG, Prompts, answer, mark, middle, shares
from ...words.format import advantage, cells, clip, count, pad, score
from ...words.policies import who
from ..paged_view import OpenReader
from ..virtual_list import VirtualList

_WITH_ADVANTAGE, _WITH_TOKENS = 64, 84
"""From so many cells on there is room for advantages; and for lengths."""
_NAME = 24
"""Most cells of a speaker's name."""
_ARROW = " → "


class ConversationList(VirtualList[ConversationSummary]):
    """A line for each conversation."""

    within_group = True
    """Whether all are of one group, which then is not named in each line, nor is its prompt."""

    def __init__(self, open_reader: OpenReader, **options: Any) -> None:
        super().__init__(open_reader, **options)
        self.prompts = Prompts()

    def rows_came(self, ids: Collection[int]) -> None:
        """Look what the prompts have in common."""
        self.prompts.see(row.prompt for row in self.pages.among(ids))
        super().rows_came(ids)

    def row_text(self, row: ConversationSummary, width: int) -> Content:
        """The line of a conversation: number, how it ended, its reward, who spoke, and what was said last."""
        where = "" if self.within_group else _where(row)
        sign, style = mark(row.status, row.reward)
        sign = sign if sign in (RIGHT, WRONG, FAILED, UNPAID) else " "
        paid = f"{pad(str(row.member), 3)}{sign}{pad(score(row.reward), 6, right=True)}"
        credit = "" if row.speaker else advantage(row.advantage)
        credited = pad(credit, 7, right=True) if width >= _WITH_ADVANTAGE else ""
        tokens = pad(f"{count(row.tokens)} tokens", 13, right=True) if width >= _WITH_TOKENS else ""
        room = width - cells(where + paid + credited + tokens) - 2
        name = clip(who(row.agent, row.policy, row.version, row.speaker, row.spoke), max(1, min(_NAME, room // 2)))
        name += "  " if name else ""
        room = max(0, room - cells(name))
        said = answer(row.status, row.reward, row.reply, row.replies)
        asked, room = ("", room) if self.within_group else self._asked(row.prompt, said.text, room)
        return Content.assemble(
            (where, "$text-muted"),
            (paid, style),
            (credited, _style(credit)),
            "  ",
            (name, "$text-accent"),
            (asked, "$text-muted"),
            (pad(middle(said.text, room), room), style if sign == FAILED else "$text-muted" if said.quiet else ""),
            (tokens, "$text-muted"),
        )

    def _asked(self, prompt: str, reply: str, room: int) -> tuple[str, int]:
        """(the prompt before an arrow, the cells that are left for the reply)."""
        most, _ = shares([self.prompts.longest, cells(reply)], max(0, room - cells(_ARROW)))
        text = self.prompts.within(prompt, most)
        return (f"{text}{_ARROW}", room - cells(text) - cells(_ARROW)) if text else ("", room)


def _where(row: ConversationSummary) -> str:
    step = "-" if row.step is None else str(row.step)
    return pad(f"{'◆' if row.split == EVAL else ''}{step}", 6, right=True) + pad(f" g{row.number}", 8)


def _style(credit: str) -> str:
    return "$text-success" if credit.startswith("+") else "$text-error" if credit.startswith("-") else "$text-muted"
