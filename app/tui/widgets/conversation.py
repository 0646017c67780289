"""Model text: newest rollout, a group's trajectories, conversations with tokens."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, VerticalScroll
from textual.content import Content
from textual.geometry import Size
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.visual import Visual
from textual.widget import Widget
from textual.widgets import Static
from textual.worker import get_current_worker

from marlaas.engine.home.paths import Home
from marlaas.engine.spec.task import ONLY
from marlaas.engine.store.rows import TrajectoryRow, Turn

from ...rollouts.answers import Answer, answer, wrapped
from ...rollouts.reading import TURNS, Loaded, Wish, load
from ...text.format import advantage, cells, clip, excerpt, line, number, pad, plain, score
from ...text.tasks import who

_ROLES = {"assistant": "bold $text-primary", "tool": "bold $text-warning", "failed": "bold $text-error"}
_MOST = 4000


class NewestRollout(Widget):
    """A task's newest prompt, reply and reward, in the room available."""

    DEFAULT_CSS = """
    NewestRollout { padding: 0 1; border-left: solid $panel-lighten-2; }
    """

    row: reactive[TrajectoryRow | None] = reactive(None)
    silent: reactive[bool] = reactive(False)
    """True: blank without a rollout, as another text explains why."""

    def render(self) -> Content:
        width, height = self.content_size
        if self.row is None:
            return Content.styled("" if self.silent else clip("Nothing was written yet.", width), "$text-muted")
        return Content("\n").join(rollout_lines(self.row, width, height))


def rollout_lines(row: TrajectoryRow, width: int, height: int) -> list[Content]:
    """At most ``height`` lines: a head with the reward, then the last turns. Every part is foreign text.

    The reply gets up to two thirds; a long turn loses its middle, as questions stand at the start and answers at the
    end.
    """
    if width < 1 or height < 1:
        return []
    where = f"group {row.group}" if row.split == "train" else "held-out"
    text = clip(f"newest rollout, {where}", max(0, width - 14))
    reward = f"reward {score(row.reward)}" if row.reward is not None else "no reward"
    gap = " " * max(1, width - cells(text) - cells(reward))
    lines = [Content.assemble((text, "$text-muted"), gap, (reward, "bold"))]
    turns = [turn for turn in row.turns if turn.text.strip()]
    replies = [place for place, turn in enumerate(turns) if turn.role == "assistant"]
    last = replies[-1] if replies else len(turns) - 1
    if row.failure and height > 2:
        lines.append(Content.styled(line(f"! {row.failure}", width), "$text-error"))
    room = height - len(lines)
    shown: list[Content] = []
    for place in range(last, -1, -1):
        left = room - len(shown)
        if left < 1:
            break
        shown = _turn(turns[place], width, max(1, left * 2 // 3) if place == last > 0 else left) + shown
    return lines + shown


def _turn(turn: Turn, width: int, most: int) -> list[Content]:
    role = f"{line(turn.role, 10)}: "
    text = role + plain(turn.text[:_MOST]).strip()
    found = [text[start:stop] for start, stop in wrapped(text, width)]
    if len(found) > most:
        end = most // 2
        found = [*found[: most - end - 1], "…", *found[len(found) - end :]] if most > 1 else found[:1]
    style = _ROLES.get(turn.role, "bold $text-muted")
    head = Content(found[0]).stylize(style, 0, len(role))
    return [head, *map(Content, found[1:])]


_TURN_CHARACTERS, _TURN_LINES = 4000, 200
_FIRST_TURNS, _LAST_TURNS = 30, 10
_SMALL = 8
"""Least rows for whole turns."""
_ANEW = Turn("template", "A new prompt begins here: the template rewrote earlier turns, or this is a fork.")


class TrajectoryPane(VerticalScroll, can_focus=True):
    """A task's newest group, one trajectory at a time, with the group's last replies.

    Follows the newest group until the person pages or scrolls. Trajectories split by the base's template are joined.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,[", "turn(-1)", "newer trajectory", show=False, id="task.newer"),
        Binding("right,]", "turn(1)", "page", key_display="←→", id="task.older"),
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
        """The trajectory that was chosen; None: it follows the newest one."""
        self._text = Static(markup=False)

    def compose(self) -> ComposeResult:
        yield self._text

    def on_mount(self) -> None:
        self._render_row()

    def show(self, rows: Sequence[TrajectoryRow]) -> None:
        if rows == self._given:
            return
        self._given = rows
        follows = self._shown is None and not self.scroll_offset.y
        if follows or any(row.id == self._shown for row in rows):
            self._rows = conversations(rows)
            self._render_row()

    def action_turn(self, by: int) -> None:
        if not self._rows:
            return
        place = self._place() + by
        self.scroll_home(animate=False)
        if place <= 0:
            self._shown, self._rows = None, conversations(self._given)
        else:
            self._shown = self._rows[min(len(self._rows) - 1, place)].id
        self._render_row()

    def _place(self) -> int:
        return next((place for place, row in enumerate(self._rows) if row.id == self._shown), 0)

    def _render_row(self) -> None:
        if not self._rows:
            self.border_title = "trajectories"
            self._text.update(Content.styled("No trajectory yet.", "$text-muted"))
            return
        place = self._place()
        row = self._rows[place]
        which = f"trajectory {place + 1} of {len(self._rows)} in group {row.group}"
        if row.policy not in ("", ONLY) or row.speaker:
            which += f", {who(row.agent, row.policy, row.version, row.speaker, row.spoke)}"
        self.border_title = Content(f"{which}, reward {score(row.reward)}")
        width, height = self.scrollable_content_region.size
        if 0 < height < _SMALL:
            lines = rollout_lines(row, width, height + 1)[1:]
        else:
            lines = [trajectory_text(row), *group_lines(self._rows, row, width)]
        self._text.update(Content("\n").join(lines))

    def on_resize(self) -> None:
        self._render_row()


def conversations(rows: Sequence[TrajectoryRow]) -> list[TrajectoryRow]:
    """Rows joined per conversation, newest first; the oldest may lack its start."""
    found: list[TrajectoryRow] = []
    parts: list[TrajectoryRow] = []
    for row in rows:
        parts.append(row)
        if row.part == 0:
            found.append(_joined(parts))
            parts = []
    return [*found, _joined(parts)] if parts else found


def _joined(parts: Sequence[TrajectoryRow]) -> TrajectoryRow:
    turns = parts[-1].turns
    for part in parts[-2::-1]:
        turns = (*turns, _ANEW, *part.turns)
    return replace(parts[0], turns=turns)


def group_lines(rows: Sequence[TrajectoryRow], shown: TrajectoryRow, width: int) -> list[Content]:
    """Each distinct last reply of a group, with reward and count.

    Lines of at most ``width`` cells; none for a single conversation. Every part is foreign text.
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
    """A readable trajectory. Every part is foreign text."""
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


class ConversationPane(ScrollView, can_focus=True):
    """Scrolls a conversation's lines, with a legend of the shades."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "scroll_down", "down", show=False, id="pane.down"),
        Binding("up,k", "scroll_up", "up", show=False, id="pane.up"),
        Binding("pagedown,space,ctrl+f", "page_down", "page down", show=False, id="pane.page_down"),
        Binding("pageup,ctrl+b", "page_up", "page up", show=False, id="pane.page_up"),
        Binding("home,g", "scroll_home", "top", show=False, id="pane.top"),
        Binding("end,G", "scroll_end", "bottom", show=False, id="pane.bottom"),
    ]
    DEFAULT_CSS = """
    ConversationPane { height: 1fr; width: 1fr; overflow-x: hidden; scrollbar-gutter: stable; padding: 0 1;
                       border-top: solid $panel-lighten-2; }
    ConversationPane:focus { border-top: solid $primary; }
    ConversationPane.-shaded { border-bottom: solid $panel-lighten-2; border-subtitle-align: left; }
    """

    shown = Loaded(Wish(-1), None)
    asked_width = 80
    """Of the newest request."""

    @property
    def line_width(self) -> int:
        return self.scrollable_content_region.width or self.size.width or 80

    def show(self, loaded: Loaded, title: str = "") -> None:
        """Show a conversation; the same one keeps its scroll position."""
        before, self.shown = self.shown, loaded
        legend = loaded.shading.legend
        self.border_title = Content(title)
        self.set_class(bool(legend), "-shaded")
        self.border_subtitle = Content("  ").join([Content.styled(label, style) for label, style in legend])
        self.virtual_size = Size(0, len(loaded.lines))
        if (loaded.wish.conversation, loaded.first) != (before.wish.conversation, before.first):
            line = bisect_right(loaded.lines, loaded.first or (0, 0), key=lambda each: each[:2])
            self.scroll_to(y=max(0, line - 4), animate=False, immediate=True, force=True)
        self.refresh()

    def on_resize(self) -> None:
        if self.asked_width != self.line_width:
            cast("ConversationPanes", self.parent).load(self)

    def render_line(self, y: int) -> Strip:
        place, width, lines = int(self.scroll_offset.y) + y, self.line_width, self.shown.lines
        if place >= len(lines):
            return Strip.blank(width, self.rich_style)
        number, start, stop = lines[place]
        block = self.shown.blocks[number]
        content = Content.styled(block.text[start:stop], block.style)
        for stretch in block.styled(start, stop):
            content = content.stylize(stretch.style, stretch.start, stretch.stop)
        strips = Visual.to_strips(self, content.truncate(width), width, 1, self.visual_style, pad=True)
        return strips[0] if strips else Strip.blank(width, self.rich_style)


class ConversationPanes(Container):
    """A pane that follows the lists, and left of it one for a marked conversation.

    A thread reads and lays out. The last request is shown, and can be copied.
    """

    DEFAULT_CSS = """
    ConversationPanes { width: 1fr; height: 100%; layout: horizontal; }
    ConversationPanes > #other { display: none; border-right: solid $panel-lighten-2; }
    ConversationPanes.-comparing > #other { display: block; }
    """

    def __init__(self, home: Home, **options: Any) -> None:
        super().__init__(**options)
        self._home = home
        self.other = ConversationPane(id="other")
        self.pane = ConversationPane(id="pane")
        self.shade = TURNS
        self.loaded: Loaded | None = None
        """The conversation that is shown."""
        self._word = ""
        self._current: int | None = None
        self._marked: int | None = None

    def compose(self) -> ComposeResult:
        yield self.other
        yield self.pane

    @property
    def comparing(self) -> bool:
        return self.has_class("-comparing")

    def choose(self, conversation: int | None) -> None:
        """Show another conversation; None: nothing."""
        if conversation == self._current and self.loaded is not None:
            return
        self._current = conversation
        if conversation is None:
            self.loaded = None
            self.pane.show(ConversationPane.shown)
        else:
            self.load(self.pane)

    def shade_by(self, name: str) -> None:
        self.shade = name
        self._again()

    def look_for(self, word: str) -> None:
        self._word = word
        self._again()

    def mark(self, current: int | None) -> str:
        """Mark the conversation, show the marked one next to it, or end that; returns what was done."""
        self.choose(current)
        if self.comparing or self._current is None:
            self.compare(False)
            return "One conversation again."
        if self._marked is None or self._marked == self._current:
            self._marked = self._current
            return "Marked. Go to another conversation and press c again: they stand side by side."
        self.compare(True)
        return "What was marked is at the left; tab goes from one to the other, c or esc ends it."

    def compare(self, wanted: bool) -> None:
        self.set_class(wanted, "-comparing")
        if wanted:
            self.load(self.other)
        else:
            self._marked = None

    def _again(self) -> None:
        self.load(self.pane)
        if self.comparing:
            self.load(self.other)

    def _wish(self, pane: ConversationPane) -> Wish | None:
        conversation = self._current if pane is self.pane else self._marked
        return None if conversation is None else Wish(conversation, self.shade, self._word, pane.line_width)

    def load(self, pane: ConversationPane) -> None:
        if wish := self._wish(pane):
            pane.asked_width = wish.width
            read = partial(self._read, pane, wish)
            self.run_worker(read, thread=True, group=f"read {pane.id}", exclusive=True, exit_on_error=False)

    def _read(self, pane: ConversationPane, wish: Wish) -> None:
        loaded = load(self._home, wish)
        if not get_current_worker().is_cancelled:
            self.call_later(self._ready, pane, loaded)

    def _ready(self, pane: ConversationPane, loaded: Loaded) -> None:
        if loaded.wish != self._wish(pane):
            return
        if pane is self.pane:
            self.loaded = loaded if loaded.conversation else None
            self.screen.refresh_bindings()
        title = f"conversation {loaded.wish.conversation}"
        pane.show(
            loaded, title if self.shade == TURNS or loaded.shading.lacking else f"{title}, tokens by {self.shade}"
        )
