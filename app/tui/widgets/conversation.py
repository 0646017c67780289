"""Model text: the newest rollout, a task's newest group, conversations with tokens."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.content import Content
from textual.geometry import Size
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.visual import Visual
from textual.widget import Widget

from marlaas.engine.home.paths import Home
from marlaas.engine.spec.task import ONLY
from marlaas.engine.store.rows import TrajectoryRow, Turn

from ...lists.lines import Learner
from ...rollouts.answers import occurrences, wrapped
from ...rollouts.reading import TURNS, Loaded, Wish, load
from ...text.format import cells, clip, line, plain, score
from ...text.tasks import who
from ..context.feed import Latest

_ROLES = {"assistant": "bold $text-primary", "tool": "bold $text-warning"}
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
        row = self.row
        if row is None:
            return Content.styled("" if self.silent else clip("Nothing was written yet.", width), "$text-muted")
        where = f"group {row.group}" if row.split == "train" else "held-out"
        text = clip(f"newest rollout, {where}", max(0, width - 14))
        reward = f"reward {score(row.reward)}" if row.reward is not None else "no reward"
        gap = " " * max(1, width - cells(text) - cells(reward))
        head = Content.assemble((text, "$text-muted"), gap, (reward, "bold"))
        return Content("\n").join([head, *last_turns(row.turns, row.failure, width, height - 1)])


def last_turns(turns: Sequence[Turn], failure: str, width: int, height: int) -> list[Content]:
    """The last turns in at most ``height`` lines. Every part is foreign text.

    The reply gets up to two thirds; a long turn loses its middle, as questions stand at the start and answers at the
    end.
    """
    if width < 1 or height < 1:
        return []
    told = [Content.styled(line(f"! {failure}", width), "$text-error")] if failure and height > 1 else []
    turns = [turn for turn in turns if turn.text.strip()]
    replies = [place for place, turn in enumerate(turns) if turn.role == "assistant"]
    last = replies[-1] if replies else len(turns) - 1
    room, shown = height - len(told), list[Content]()
    for place in range(last, -1, -1):
        left = room - len(shown)
        if left < 1:
            break
        shown = _turn(turns[place], width, max(1, left * 2 // 3) if place == last > 0 else left) + shown
    return told + shown


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


class ConversationPane(ScrollView, can_focus=True):
    """A conversation's lines, with a legend of the shades."""

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

    def __init__(self, home: Home, **options: Any) -> None:
        super().__init__(**options)
        self._wish: Wish | None = None
        self._loads = Latest(self, partial(load, home), self._ready)

    @property
    def line_width(self) -> int:
        return self.scrollable_content_region.width or self.size.width or 80

    def read(self, conversation: int | None, shade: str = TURNS, word: str = "") -> None:
        """Read a conversation in a thread, then show it; None: nothing."""
        if conversation is None:
            self._wish = None
            self.show(ConversationPane.shown)
        else:
            self._wish = Wish(conversation, shade, word, self.line_width)
            self._loads.ask(self._wish)

    def on_resize(self) -> None:
        if self._wish is not None and self._wish.width != self.line_width:
            self._wish = replace(self._wish, width=self.line_width)
            self._loads.ask(self._wish)

    def _ready(self, loaded: Loaded) -> None:
        if loaded.wish == self._wish:
            self.show(loaded)
            self.screen.refresh_bindings()

    def title_of(self, loaded: Loaded) -> str:
        shaded = loaded.shading.name != TURNS and not loaded.shading.lacking
        return f"conversation {loaded.wish.conversation}" + (f", tokens by {loaded.shading.name}" if shaded else "")

    def show(self, loaded: Loaded) -> None:
        """Show a conversation; the same one keeps its scroll position."""
        before, self.shown = self.shown, loaded
        legend = loaded.shading.legend
        self.border_title = Content(self.title_of(loaded) if loaded.blocks else "")
        self.set_class(bool(legend), "-shaded")
        self.border_subtitle = Content("  ").join([Content.styled(label, style) for label, style in legend])
        self.virtual_size = Size(0, len(loaded.lines))
        if (loaded.wish.conversation, loaded.first) != (before.wish.conversation, before.first):
            line = bisect_right(loaded.lines, loaded.first or (0, 0), key=lambda each: each[:2])
            self.scroll_to(y=max(0, line - 4), animate=False, immediate=True, force=True)
        self.refresh()

    def line_at(self, place: int) -> Content | None:
        if place >= len(self.shown.lines):
            return None
        number, start, stop = self.shown.lines[place]
        block = self.shown.blocks[number]
        content = Content.styled(block.text[start:stop], block.style)
        for stretch in block.styled(start, stop):
            content = content.stylize(stretch.style, stretch.start, stretch.stop)
        word = self.shown.wish.word
        before = min(start, len(word))
        for begin, end in occurrences(block.text[start - before : stop + len(word)], word):  # it may go over two lines
            if end > before:
                content = content.stylize("bold reverse $text-accent", max(0, begin - before), end - before)
        return content

    def render_line(self, y: int) -> Strip:
        width, content = self.line_width, self.line_at(int(self.scroll_offset.y) + y)
        shown = content.truncate(width) if content is not None else Content("")
        strips = Visual.to_strips(self, shown, width, 1, self.visual_style, pad=True)
        return strips[0] if strips else Strip.blank(width, self.rich_style)


_SMALL = 8
"""Least lines for more than the last turns."""


class NewestGroup(ConversationPane):
    """A task's newest group, one conversation at a time.

    Follows the newest group until the person pages or scrolls. A low pane shows only the last turns.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,[", "turn(-1)", "newer trajectory", show=False, id="task.newer"),
        Binding("right,]", "turn(1)", "page", key_display="←→", id="task.older"),
    ]

    _learner: Learner | None = None
    _newest: Sequence[int] = ()
    """Conversations of the newest group, newest first."""
    _group: Sequence[int] = ()
    """Those of the group in sight."""
    _chosen: int | None = None
    """The conversation that was chosen; None: it follows the newest one."""
    _few: Sequence[Content] = ()
    """Lines in place of a whole conversation."""

    def on_mount(self) -> None:
        self._read_chosen()

    def follow(self, learner: Learner, conversations: Sequence[int]) -> None:
        """Show the newest group; that of another learner whatever was chosen before."""
        another = learner != self._learner
        if not another and conversations == self._newest:
            return
        self._learner, self._newest = learner, conversations
        self._chosen = None if another else self._chosen
        follows = another or (self._chosen is None and not self.scroll_offset.y)
        if follows or self._chosen in conversations:
            self._group = conversations
            self._read_chosen()

    def action_turn(self, by: int) -> None:
        """To the next or previous one; before the first it follows the newest again."""
        place = self._place + by
        if place <= 0:
            self._chosen, self._group = None, self._newest
        else:
            self._chosen = self._group[min(len(self._group) - 1, place)] if self._group else None
        self._read_chosen()

    @property
    def _place(self) -> int:
        return self._group.index(self._chosen) if self._chosen in self._group else 0

    def _read_chosen(self) -> None:
        self.read(self._group[self._place] if self._group else None)

    def title_of(self, loaded: Loaded) -> str:
        one, title = loaded.conversation, f"trajectory {self._place + 1} of {len(self._group)}"
        if one is None:
            return title
        several = one.policy not in ("", ONLY) or one.speaker
        speaks = f", {who(one.agent, one.policy, one.version, one.speaker, one.spoke)}" if several else ""
        return f"{title} in group {one.number}{speaks}, reward {score(one.reward)}"

    def on_resize(self) -> None:
        self.show(self.shown)

    def show(self, loaded: Loaded) -> None:
        super().show(loaded)
        one, height = loaded.conversation, self.scrollable_content_region.height
        self._few = []
        if not loaded.blocks:
            self.border_title = "trajectories"
            self._few = [Content.styled("No trajectory yet.", "$text-muted")]
        elif one is not None and height < _SMALL:
            turns = list(chain.from_iterable(part.turns for part in one.parts))
            self._few = last_turns(turns, one.failure, self.line_width, height)
        if self._few:
            self.virtual_size = Size(0, 0)

    def line_at(self, place: int) -> Content | None:
        if not self._few:
            return super().line_at(place)
        return self._few[place] if place < len(self._few) else None


class ConversationPanes(Container):
    """A pane that follows the lists, and left of it one for a marked conversation.

    The last request is shown, and can be copied.
    """

    DEFAULT_CSS = """
    ConversationPanes { width: 1fr; height: 100%; layout: horizontal; }
    ConversationPanes > #other { display: none; border-right: solid $panel-lighten-2; }
    ConversationPanes.-comparing > #other { display: block; }
    """

    def __init__(self, home: Home, **options: Any) -> None:
        super().__init__(**options)
        self.other = ConversationPane(home, id="other")
        self.pane = ConversationPane(home, id="pane")
        self.shade = TURNS
        self._word = ""
        self._current: int | None = None
        self._marked: int | None = None

    def compose(self) -> ComposeResult:
        yield self.other
        yield self.pane

    @property
    def loaded(self) -> Loaded | None:
        """The conversation that is shown."""
        return self.pane.shown if self.pane.shown.conversation else None

    @property
    def comparing(self) -> bool:
        return self.has_class("-comparing")

    def choose(self, conversation: int | None) -> None:
        """Show another conversation; None: nothing."""
        if conversation != self._current or self.loaded is None:
            self._current = conversation
            self._read()

    def shade_by(self, name: str) -> None:
        self.shade = name
        self._read()

    def look_for(self, word: str) -> None:
        self._word = word
        self._read()

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
        self._marked = self._marked if wanted else None
        self._read()

    def _read(self) -> None:
        self.pane.read(self._current, self.shade, self._word)
        if self.comparing:
            self.other.read(self._marked, self.shade, self._word)
