"""The pane for one conversation: blocks of text, wrapped as far as somebody scrolls, and a legend of the shades.

It shows a ``Page``. Knows no store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.visual import Visual

from ...rollouts.document import Block, Layout
from ...rollouts.shading import TURNS, Shading

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
