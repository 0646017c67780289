"""Dialogs that are read: one long text that scrolls. Enter and esc close them."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.widgets import Static

from .dialog import Dialog

_AROUND = 3
"""Lines of the frame and of the keys."""


class Reading(Dialog[None]):
    """Scrolls over a text that is made for its width."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,escape,q", "dismiss", "close", key_display="⏎ esc", id="reading.close"),
        Binding("j", "scroll(1)", "scroll", key_display="j k", id="reading.down"),
        Binding("k", "scroll(-1)", "up", show=False, id="reading.up"),
    ]
    DEFAULT_CSS = """
    Reading > Vertical { width: 96%; max-width: 130; height: 92%; }
    Reading #legend { height: 1; color: $text-muted; }
    Reading VerticalScroll { height: 1fr; scrollbar-gutter: stable; }
    Reading.-fitted > Vertical { height: auto; max-height: 100%; }
    Reading.-fitted VerticalScroll { height: auto; }
    Reading #text { width: 100%; }
    """
    AUTO_FOCUS = "VerticalScroll"
    TALL = True
    """Whether it is as high as the screen however short its text is, which may come or change later."""

    def legend(self) -> Content:
        """A line above the text that does not scroll; empty where there is none."""
        return Content("")

    @abstractmethod
    def text(self, width: int) -> Content:
        """The text, for lines of ``width`` cells."""

    def content(self) -> ComposeResult:
        """Lay out legend and text."""
        self.set_class(not self.TALL, "-fitted")
        yield Static(id="legend", markup=False)
        with VerticalScroll():
            yield Static(id="text", markup=False)

    @property
    def _scrolls(self) -> bool:
        """Whether the text is longer than what is seen of it."""
        return self.is_mounted and self.query_one(VerticalScroll).max_scroll_y > 0

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave out the keys that scroll where nothing does."""
        return action != "scroll" or self._scrolls

    def on_resize(self, event: Resize) -> None:
        """Make the text anew for the new width."""
        self.call_after_refresh(self.draw)

    def draw(self) -> None:
        """Show legend and text as they are now."""
        legend, scrolled = self.legend(), self.query_one(VerticalScroll)
        self.query_one("#legend", Static).update(legend)
        self.query_one("#legend").display = bool(legend.plain)
        scrolled.styles.max_height = max(1, self.size.height - _AROUND - bool(legend.plain))
        width = scrolled.scrollable_content_region.width
        self.query_one("#text", Static).update(self.text(max(1, width)))
        self.call_after_refresh(self.refresh_bindings)  # by then it is known whether the text scrolls

    def action_scroll(self, lines: int) -> None:
        """Scroll by some lines."""
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)
