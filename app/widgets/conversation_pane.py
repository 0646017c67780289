"""Conversations to read: one, or two side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.visual import Visual
from textual.worker import get_current_worker

from marlaas.engine.errors import MarlaasError
from marlaas.engine.home import Home

from ..rollouts.document import Block, Layout
from ..rollouts.reading import TURNS, Loaded, Shading, Wish, load
from ..words.format import line

# The pane for one conversation: blocks of text, wrapped as far as somebody scrolls, and a legend of the shades.
#
# It shows a ``Page``. Knows no store.

AHEAD = 400
"""Lines that are wrapped at once in the background."""


@dataclass(frozen=True)
class Page:
    """What a pane shows."""

    key: object
    """The conversation's key: with another key the pane begins at the top."""
    title: str
    blocks: Sequence[Block]
    shading: Shading = field(default_factory=lambda: Shading(TURNS))
    first: tuple[int, int] | None = None
    """Where to begin: (block, character); None: at the top."""


EMPTY = Page(None, "", ())


class ConversationPane(ScrollView, can_focus=True):
    """Scrolls over the lines of a page."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "scroll_down", "down", show=False, id="pane.down"),
        Binding("up,k", "scroll_up", "up", show=False, id="pane.up"),
        Binding("pagedown,space,ctrl+f", "page_down", "page down", show=False, id="pane.page_down"),
        Binding("pageup,ctrl+b", "page_up", "page up", show=False, id="pane.page_up"),
        Binding("home,g", "scroll_home", "top", show=False, id="pane.top"),
        Binding("end,G", "to_end", "bottom", show=False, id="pane.bottom"),
    ]
    DEFAULT_CSS = """
    ConversationPane { height: 1fr; width: 1fr; overflow-x: hidden; scrollbar-gutter: stable; padding: 0 1;
                       border-top: solid $panel-lighten-2; }
    ConversationPane:focus { border-top: solid $primary; }
    ConversationPane.-shaded { border-bottom: solid $panel-lighten-2; border-subtitle-align: left; }
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.page = EMPTY
        self._layout = Layout((), 80)
        self._wants_end = False

    def show(self, page: Page) -> None:
        """Show a page; the same page in other shades stays where it is."""
        elsewhere = page.key != self.page.key or page.first != self.page.first
        self.page = page
        self.border_title = Content(page.title)
        legend = page.shading.legend
        self.set_class(bool(legend), "-shaded")
        self.border_subtitle = Content("  ").join([Content.styled(label, style) for label, style in legend])
        self._wants_end = False
        self._lay_out()
        if elsewhere:
            place = max(0, self._layout.line_of(*page.first) - 3) if page.first else 0
            self._grow(place + self.size.height)
            self.scroll_to(y=place, animate=False, immediate=True, force=True)

    # Lines.

    def _lay_out(self) -> None:
        self._layout = Layout(self.page.blocks, max(1, self._width))
        self._grow(int(self.scroll_offset.y) + 2 * max(1, self.size.height))
        self.call_later(self._wrap_on, self._layout)
        self.refresh()

    @property
    def _width(self) -> int:
        return self.scrollable_content_region.width or self.size.width or 80

    def _grow(self, count: int) -> None:
        self._layout.reach(count)
        self.virtual_size = Size(0, len(self._layout.lines))

    def _wrap_on(self, layout: Layout) -> None:
        """Wrap the remaining lines, some at a time, so that no key waits for it."""
        if layout is self._layout and not layout.whole:
            self._grow(len(layout.lines) + AHEAD)
            self.set_timer(0.005, lambda: self._wrap_on(layout))
        elif layout is self._layout and self._wants_end:
            self._wants_end = False
            self.scroll_end(animate=False, immediate=True)

    def action_to_end(self) -> None:
        """Go to the last line, once it is known."""
        self._wants_end = not self._layout.whole
        self.scroll_end(animate=False, immediate=True)

    def on_resize(self) -> None:
        """Wrap the lines at the new width."""
        if self._layout.width != self._width:
            self._lay_out()
        else:
            self._grow(int(self.scroll_offset.y) + 2 * max(1, self.size.height))

    def render_line(self, y: int) -> Strip:
        """One line of what is in sight."""
        place, width = int(self.scroll_offset.y) + y, self._width
        if place >= len(self._layout.lines):
            return Strip.blank(width, self.rich_style)
        line = self._layout.lines[place]
        block = self.page.blocks[line.block]
        content = Content.styled(block.text[line.start : line.stop], block.style)
        for stretch in block.styled(line.start, line.stop):
            content = content.stylize(stretch.style, stretch.start, stretch.stop)
        strips = Visual.to_strips(self, content.truncate(width), width, 1, self.visual_style, pad=True)
        return strips[0] if strips else Strip.blank(width, self.rich_style)


# Shows conversations to read: one, or two side by side.
#
# They are read and laid out in a thread. The one that was asked for last is shown, and can be copied.


class ConversationPanes(Container):
    """A pane that follows the lists, and at its left a pane for a marked conversation."""

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
        """Lay out both panes."""
        yield self.other
        yield self.pane

    @property
    def comparing(self) -> bool:
        """Whether two conversations are shown."""
        return self.has_class("-comparing")

    def choose(self, conversation: int | None) -> None:
        """Show another conversation; None: nothing."""
        if conversation == self._current and self.loaded is not None:
            return
        self._current = conversation
        if conversation is None:
            self.loaded = None
            self.pane.show(EMPTY)
        else:
            self._load(self.pane, conversation)

    def shade_by(self, name: str) -> None:
        """Show the same in other shades."""
        self.shade = name
        self._again()

    def look_for(self, word: str) -> None:
        """Mark a word in the text."""
        self._word = word
        self._again()

    def mark(self, current: int | None) -> str:
        """Mark the conversation, or show the marked one beside it, or end that; returns a sentence that says which."""
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
        """Show two conversations, or one."""
        self.set_class(wanted, "-comparing")
        if not wanted:
            self._marked = None
        elif self._marked is not None:
            self._load(self.other, self._marked)

    def _again(self) -> None:
        if self._current is not None:
            self._load(self.pane, self._current)
        if self.comparing and self._marked is not None:
            self._load(self.other, self._marked)

    # Reading.

    def _load(self, pane: ConversationPane, conversation: int) -> None:
        wish = Wish(conversation, self.shade, self._word)
        read = partial(self._read, pane, wish)
        self.run_worker(read, thread=True, group=f"read {pane.id}", exclusive=True, exit_on_error=False)

    def _read(self, pane: ConversationPane, wish: Wish) -> None:
        try:
            loaded = load(self._home, wish)
        except MarlaasError as error:
            loaded = _unreadable(wish, error.message)
        except Exception as error:  # of an invalid row; unreported, another conversation would stay here
            loaded = _unreadable(wish, f"{type(error).__name__}: {error}")
        if not get_current_worker().is_cancelled:
            self.post_message(_Ready(pane, loaded))

    def on__ready(self, message: _Ready) -> None:
        """Show what was read, unless something else is wanted by now."""
        pane, loaded = message.pane, message.loaded
        wanted = self._current if pane is self.pane else self._marked
        if loaded.wish != Wish(wanted or 0, self.shade, self._word):
            return
        if pane is self.pane:
            self.loaded = loaded if loaded.conversation else None
            self.screen.refresh_bindings()
        title = f"conversation {loaded.wish.conversation}"
        title += "" if self.shade == TURNS or loaded.shading.lacking else f", tokens by {self.shade}"
        pane.show(Page(loaded.wish.conversation, title, loaded.blocks, loaded.shading, loaded.first))


def _unreadable(wish: Wish, why: str) -> Loaded:
    return Loaded(wish, None, (Block(f"This conversation cannot be read: {line(why, 400)}", "$text-error"),))


class _Ready(Message, bubble=False):
    """A conversation from the thread."""

    def __init__(self, pane: ConversationPane, loaded: Loaded) -> None:
        super().__init__()
        self.pane, self.loaded = pane, loaded
