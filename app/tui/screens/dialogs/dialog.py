"""What every dialog is: a frame in the middle of the screen, and in its last line the keys that act in it."""

from __future__ import annotations

from abc import abstractmethod

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen, ScreenResultType

from ...widgets.bars import KeyBar


class Dialog(ModalScreen[ScreenResultType]):
    """A dialog with a title in its frame."""

    DEFAULT_CSS = """
    Dialog { align: center middle; }
    Dialog > Vertical { width: 72; max-width: 95%; height: auto; padding: 0 1; background: $surface;
                        border: round $primary; }
    Dialog KeyBar { margin-left: -1; background: $surface; color: $text-muted; }
    """
    ENTER = ""
    """What enter does in a line of text; empty if there is none, or where a binding says it."""

    def heading(self) -> str:
        """What the frame is called; empty if the dialog's first line says it."""
        return ""

    @abstractmethod
    def content(self) -> ComposeResult:
        """What stands above the keys."""

    def compose(self) -> ComposeResult:
        """Lay out title, content and keys."""
        with Vertical() as frame:
            frame.border_title = Content(self.heading())
            yield from self.content()
            yield KeyBar(self.ENTER)
