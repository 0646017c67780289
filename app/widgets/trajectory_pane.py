"""What the model writes: the newest group of a task, one trajectory at a time, as readable turns.

Where the base's template rewrote earlier turns, the trajectories of one conversation are shown as one. Below it stand
the last replies of its whole group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from marlaas.engine.spec import ONLY
from marlaas.engine.store import TrajectoryRow, Turn

from ..rollouts.answers import Answer, answer
from ..words.format import advantage, cells, clip, excerpt, line, number, pad, score
from ..words.policies import who

_NONE = Content.styled("No trajectory yet.", "$text-muted")
_TURN_CHARACTERS, _TURN_LINES = 4000, 200
_FIRST_TURNS, _LAST_TURNS = 30, 10
_SMALL = 8
"""Rows below which there is no room for whole turns."""
_ROLES = {"assistant": "bold $text-primary", "tool": "bold $text-warning", "failed": "bold $text-error"}
_ANEW = Turn("template", "A new prompt begins here: the template rewrote earlier turns, or this is a fork.")


class TrajectoryPane(VerticalScroll, can_focus=True):
    """Follows the newest group until the person pages or scrolls; what is being read stays."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,[", "newer", "newer trajectory", show=False, id="task.newer"),
        Binding("right,]", "older", "page", key_display="←→", id="task.older"),
        Binding("j", "scroll_down", "down", show=False, id="task.down"),
        Binding("k", "scroll_up", "up", show=False, id="task.up"),
        Binding("g", "scroll_home", "top", show=False, id="task.top"),
        Binding("G", "scroll_end", "bottom", show=False, id="task.bottom"),
    ]
    DEFAULT_CSS = """
    TrajectoryPane { height: 1fr; padding: 0 1; scrollbar-gutter: stable; border-top: solid $panel-lighten-2; }
    TrajectoryPane:focus { border-top: solid $primary; }
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._given: Sequence[TrajectoryRow] = ()
        self._rows: Sequence[TrajectoryRow] = ()
        self._shown: int | None = None
        self._follows = True
        self._text = Static(_NONE, markup=False)
        self.border_title = "trajectories"

    def compose(self) -> Any:
        """One text that scrolls."""
        yield self._text

    def show(self, rows: Sequence[TrajectoryRow]) -> None:
        """Show new rows, newest first."""
        if rows == self._given:
            return
        self._given = rows
        if self._follows and not self.scroll_offset.y:
            self._take_given()
        elif any(row.id == self._shown for row in rows):
            self._rows = conversations(rows)
            self._render_row()

    def _take_given(self) -> None:
        self._rows = conversations(self._given)
        self._render_row()

    def action_newer(self) -> None:
        """Show the next newer trajectory."""
        self._turn(-1)

    def action_older(self) -> None:
        """Show the next older trajectory."""
        self._turn(1)

    def _turn(self, by: int) -> None:
        if not self._rows:
            return
        place = self._place() + by
        self._follows = place <= 0
        self.scroll_home(animate=False)
        if self._follows:
            self._take_given()
        else:
            self._shown = self._rows[min(len(self._rows) - 1, place)].id
            self._render_row()

    def _place(self) -> int:
        """The place of the shown trajectory in its group; that of the newest where none was chosen."""
        return next((i for i, row in enumerate(self._rows) if not self._follows and row.id == self._shown), 0)

    def _render_row(self) -> None:
        if not self._rows:
            self.border_title = "trajectories"
            self._text.update(_NONE)
            return
        place = self._place()
        row = self._rows[place]
        self._shown = row.id
        which = f"trajectory {place + 1} of {len(self._rows)} in group {row.group}"
        if row.policy not in ("", ONLY) or row.speaker:
            which += f", {who(row.agent, row.policy, row.version, row.speaker, row.spoke)}"
        self.border_title = Content(f"{which}, reward {score(row.reward)}")
        width, height = self.scrollable_content_region.size
        small = 0 < height < _SMALL
        if small:
            self._text.update(preview(row, width, height))
            return
        parts = [trajectory_text(row), *group_lines(self._rows, row, width)]
        self._text.update(Content("\n").join(parts))

    def on_resize(self) -> None:
        """Fit what is shown to the new size."""
        self._render_row()


def conversations(rows: Sequence[TrajectoryRow]) -> list[TrajectoryRow]:
    """Rows with all parts of a conversation joined, newest first; the oldest may lack its beginning."""
    found: list[TrajectoryRow] = []
    parts: list[TrajectoryRow] = []
    for row in rows:
        parts.append(row)
        if row.part == 0:
            found.append(_joined(parts))
            parts = []
    return [*found, _joined(parts)] if parts else found


def _joined(parts: Sequence[TrajectoryRow]) -> TrajectoryRow:
    """One row of a conversation's parts, which are given newest first."""
    turns = parts[-1].turns
    for part in parts[-2::-1]:
        turns = (*turns, _ANEW, *part.turns)
    return replace(parts[0], turns=turns)


def preview(row: TrajectoryRow, width: int, lines: int) -> Content:
    """The end of a trajectory, a line for each turn. Every part of it is foreign text."""
    said = [(line(turn.role, 10), turn.text) for turn in row.turns]
    said += [("failed", row.failure)] if row.failure else []
    found = []
    for role, text in said[-lines:]:
        words = line(text, max(1, width - cells(role) - 2))
        found.append(Content.assemble((f"{role}: ", _ROLES.get(role, "bold $text-muted")), words))
    return Content("\n").join(found)


def group_lines(rows: Sequence[TrajectoryRow], shown: TrajectoryRow, width: int) -> list[Content]:
    """Each distinct last reply of a group's conversations, with how it was paid and how often it came.

    In lines of at most ``width`` cells; none where there is one conversation alone. Every part is foreign text.
    """
    if len(rows) < 2:
        return []
    several = len({row.agent for row in rows}) > 1
    found = Counter(_last_reply(row, several) for row in rows)
    own, wide = _last_reply(shown, several), max(cells(one.mark[0]) for one in found)
    lines = [Content(""), Content.styled("last replies of its group", "$text-accent")]
    for one, count in found.items():
        begin = f"{'▸' if one == own else ' '} {pad(one.mark[0], wide)} {pad(f'×{count}', 3)} "
        said = clip(one.said, max(1, width - cells(begin)))
        lines.append(Content.assemble((begin, one.mark[1]), (said, "$text-muted" if one.quiet else "")))
    return lines


def _last_reply(row: TrajectoryRow, named: bool) -> Answer:
    said = [turn.text for turn in row.turns if turn.role == "assistant"]
    one = answer(row.status, row.reward, said[-1] if said else "", len(said))
    return replace(one, name=line(row.agent, 12)) if named else one


def trajectory_text(row: TrajectoryRow) -> Content:
    """A trajectory for reading. Every part of it is foreign text."""
    head = [
        "held-out" if row.split != "train" else f"group {row.group}",
        f"member {row.member}",
        who(row.agent, row.policy, row.version, row.speaker, row.spoke),
        f"{row.part + 1} trajectories" if row.part else "",
        f"version {row.version}" if row.policy in ("", ONLY) and not row.speaker else "",
        f"{row.tokens} tokens",
        line(row.status, 12) if row.status != "ok" else "",
    ]
    rewards = [f"reward {score(row.reward)}", *([] if row.speaker else [f"advantage {advantage(row.advantage)}"])]
    rewards += [f"{line(name, 20)} {number(value)}" for name, value in list(row.parts.items())[:8]]
    parts: list[tuple[str, str] | str] = [
        (" · ".join(part for part in head if part), "$text-muted"),
        "\n",
        (" · ".join(rewards), "bold"),
    ]
    if row.failure:
        parts += ["\n", (f"! {line(row.failure, 400)}", "$text-error")]
    skipped = len(row.turns) - _FIRST_TURNS - _LAST_TURNS
    for place, turn in enumerate(row.turns):
        if skipped > 0 and _FIRST_TURNS <= place < len(row.turns) - _LAST_TURNS:
            if place == _FIRST_TURNS:
                parts += ["\n\n", (f"… {skipped} turns between", "$text-muted")]
            continue
        role, text = line(turn.role, 20), excerpt(turn.text, _TURN_CHARACTERS, _TURN_LINES)
        parts += ["\n\n", (role, _ROLES.get(role, "bold $text-muted")), "\n", text]
    return Content.assemble(*parts)
