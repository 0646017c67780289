"""What the model of a task wrote last: the prompt, the reply and its reward, in the room that there is."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from marlaas.engine.store import TrajectoryRow, Turn

from ...words.format import cells, clip, line, plain, score

_ROLES = {"assistant": "bold $text-primary", "tool": "bold $text-warning"}
_MOST = 4000
"""Characters of a turn that are looked at."""
_NONE = "Nothing was written yet."


class NewestRollout(Widget):
    """The newest trajectory of the task under the cursor; it is read only, its own view has all of them."""

    DEFAULT_CSS = """
    NewestRollout { padding: 0 1; border-left: solid $panel-lighten-2; }
    """

    row: reactive[TrajectoryRow | None] = reactive(None)
    silent: reactive[bool] = reactive(False)
    """Whether nothing is said where there is none: because something else says why."""

    def render(self) -> Content:
        """The trajectory."""
        width, height = self.content_size
        if self.row is None:
            return Content.styled("" if self.silent else clip(_NONE, width), "$text-muted")
        return Content("\n").join(rollout_lines(self.row, width, height))


def rollout_lines(row: TrajectoryRow, width: int, height: int) -> list[Content]:
    """At most ``height`` lines: a head with the reward, then the last turns. Every part is foreign text.

    The reply gets two thirds of the room where it needs it; a turn that is too long loses its middle, because questions
    stand at the beginning and answers at the end.
    """
    if width < 1 or height < 1:
        return []
    lines = [_head(row, width)]
    turns = [turn for turn in row.turns if turn.text.strip()]
    replies = [place for place, turn in enumerate(turns) if turn.role == "assistant"]
    last = replies[-1] if replies else len(turns) - 1
    room = height - 1
    if row.failure and room > 1:
        lines.append(Content.styled(line(f"! {row.failure}", width), "$text-error"))
        room -= 1
    shown: list[list[Content]] = []
    for place in range(last, -1, -1):
        if room < 1:
            break
        most = max(1, room * 2 // 3) if place == last and place > 0 else room
        shown.append(_turn(turns[place], width, most))
        room -= len(shown[-1])
    return lines + [each for turn in reversed(shown) for each in turn]


def _head(row: TrajectoryRow, width: int) -> Content:
    where = f"group {row.group}" if row.split == "train" else "held-out"
    text = clip(f"newest rollout, {where}", max(0, width - 14))
    reward = f"reward {score(row.reward)}" if row.reward is not None else "no reward"
    gap = " " * max(1, width - cells(text) - cells(reward))
    return Content.assemble((text, "$text-muted"), gap, (reward, "bold"))


def _turn(turn: Turn, width: int, most: int) -> list[Content]:
    """At most so many lines of a turn, behind its role."""
    role = line(turn.role, 10)
    wrapped = _wrapped(plain(turn.text[:_MOST]).strip(), max(1, width - cells(role) - 2), width)
    if len(wrapped) > most:
        end = most // 2
        wrapped = [*wrapped[: most - end - 1], "…", *wrapped[len(wrapped) - end :]] if most > 1 else wrapped[:1]
    first, *rest = wrapped
    head = Content.assemble((f"{role}: ", _ROLES.get(turn.role, "bold $text-muted")), first)
    return [head, *(Content(each) for each in rest)]


def _wrapped(text: str, first: int, width: int) -> Sequence[str]:
    """Lines of at most ``width`` cells, the first of at most ``first``; words stay whole where they fit."""
    lines: list[str] = []
    for paragraph in text.split("\n"):
        rest = paragraph.rstrip()
        while True:
            room = width if lines else first
            if cells(rest) <= room:
                lines.append(rest)
                break
            cut = _fitting(rest, room)
            space = rest.rfind(" ", max(0, cut // 2), cut + 1)
            cut = space if space > 0 else cut
            lines.append(rest[:cut].rstrip())
            rest = rest[cut:].lstrip()
    return lines


def _fitting(text: str, room: int) -> int:
    """How many characters fit into so many cells; at least one."""
    used = 0
    for place, character in enumerate(text):
        used += cells(character)
        if used > room:
            return max(1, place)
    return len(text)
