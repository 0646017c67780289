"""How to use an adapter that was exported: the lines of its ``USE.md``."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Footer, Static

from ...context.application import Application
from ...words.format import line, plain


class Exported(ModalScreen[None]):
    """Scrolls over the lines; y copies them."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "dismiss", "close", key_display="esc", id="exported.close"),
        Binding("y", "copy", "copy", id="exported.copy"),
        Binding("j", "scroll(1)", show=False, id="exported.down"),
        Binding("k", "scroll(-1)", show=False, id="exported.up"),
    ]
    DEFAULT_CSS = """
    Exported { align: center middle; }
    Exported > Vertical { width: 96%; max-width: 130; height: 92%; background: $surface; border: round $primary;
                          padding: 0 1; }
    Exported VerticalScroll { height: 1fr; }
    Exported #lines { width: 100%; }
    """
    AUTO_FOCUS = "VerticalScroll"

    def __init__(self, folder: Path, text: str) -> None:
        """``text`` is that of ``USE.md`` in the folder."""
        super().__init__()
        self._folder, self._text = folder, text

    def compose(self) -> ComposeResult:
        """Lay out lines and keys."""
        with Vertical() as frame:
            frame.border_title = Content(f"how to use {line(str(self._folder))}")
            with VerticalScroll():
                yield Static(drawn(self._text), id="lines", markup=False)
        yield Footer(show_command_palette=False)

    def action_copy(self) -> None:
        """Copy the lines."""
        cast("Application", self.app).copy(self._text, "How to use it")

    def action_scroll(self, lines: int) -> None:
        """Scroll by some lines."""
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)


def drawn(text: str) -> Content:
    """The Markdown of ``USE.md`` with its headings and its lines of code set apart."""
    parts, code = [], False
    for each in plain(text).splitlines():
        if each.startswith("```"):
            code = not code
        elif code:
            parts.append(Content.styled(f"  {each}", "$text-success"))
        elif each.startswith("#"):
            parts.append(Content.styled(each.lstrip("# "), "bold $text-primary"))
        else:
            parts.append(Content(each))
    return Content("\n").join(parts)
