"""The conversations of a group, of a step, of a whole task, or those that a search has found."""

from __future__ import annotations

from textual.content import Content

from marlaas.engine.spec import ONLY
from marlaas.engine.store import EVAL, ConversationSummary

from ...words.format import cells, clip, count, line, pad, score
from ...words.policies import who
from ..virtual_list import VirtualList

_WITH_TOKENS = 60
"""From this many cells on there is room for lengths beside the names of speakers."""
_NAME = 20
"""Cells of the speakers' names, before advantages get any."""


class ConversationList(VirtualList[ConversationSummary]):
    """A line for each conversation."""

    within_group = True
    """Whether all are of one group, which then is not named in each line."""

    def row_text(self, row: ConversationSummary, width: int) -> Content:
        """The line of a conversation: number, reward, length, and how it ended."""
        where = "" if self.within_group else _where(row)
        if row.policy not in ("", ONLY) or row.speaker:
            return _of_several(row, where, width)
        agent = line(row.agent, 12) if row.agent not in ("", "agent", "policy") else ""
        ended = (f"✗ {line(row.status, 10)}", "$text-error") if row.status != "ok" else (agent, "$text-muted")
        return Content.assemble(
            (where, "$text-muted"),
            pad(f"member {row.member}", 10),
            pad(score(row.reward), 7, right=True),
            (pad(f"{row.advantage:+.2f}", 8, right=True), _advantage(row.advantage)),
            (pad(f"{count(row.tokens)} tokens", 13, right=True), "$text-muted"),
            "  ",
            ended,
        )


def _of_several(row: ConversationSummary, where: str, width: int) -> Content:
    """The line where several policies play: who spoke, then the reward, then lengths where there is room."""
    spoke = who(row.agent, row.policy, row.version, row.speaker, row.spoke)
    tokens = pad(f"{count(row.tokens)} tokens", 13, right=True) if width >= _WITH_TOKENS else ""
    room = width - cells(where) - cells(tokens) - 15
    advantage = pad("" if row.speaker else f"{row.advantage:+.2f}", 8, right=True) if room >= _NAME else ""
    room = max(8, room + 8 - cells(advantage))
    text = f"✗ {line(row.status, 10)} {spoke}" if row.status != "ok" else spoke
    return Content.assemble(
        (where, "$text-muted"),
        (pad(clip(f"{row.member:<3}{text}", room), room), "$text-error" if row.status != "ok" else ""),
        pad(score(row.reward), 7, right=True),
        (advantage, _advantage(row.advantage)),
        (tokens, "$text-muted"),
    )


def _where(row: ConversationSummary) -> str:
    step = "-" if row.step is None else str(row.step)
    return pad(f"{'◆' if row.split == EVAL else ''}{step}", 6, right=True) + pad(f" g{row.number}", 8)


def _advantage(value: float) -> str:
    return "$text-success" if value > 0 else "$text-error" if value < 0 else "$text-muted"
