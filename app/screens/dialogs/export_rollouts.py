"""Asks which rollouts to write into which file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input, Label, RadioButton, RadioSet

from .dialog import Dialog


@dataclass(frozen=True)
class Export:
    """What somebody wants to write, and where."""

    scope: str
    file: Path


class Choice(RadioButton):
    """One of several: the sign, and not its colour alone, says which is chosen."""

    CHOSEN, OTHER = "●", "○"
    BUTTON_INNER = OTHER

    def watch_value(self) -> None:
        """Show the sign of the value."""
        super().watch_value()
        self.BUTTON_INNER = self.CHOSEN if self.value else self.OTHER
        self.refresh()


class ExportRollouts(Dialog[Export | None]):
    """Answers with what to write, or None. Enter in the name writes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "app.focus_next", "next", id="export.next"),
        Binding("escape", "leave", "close", key_display="esc", id="export.leave"),
    ]
    DEFAULT_CSS = """
    ExportRollouts RadioSet { width: 100%; margin-bottom: 1; }
    ExportRollouts #hint { color: $text-muted; margin-bottom: 1; }
    """
    ENTER = "write (in the name)"

    def __init__(self, scopes: Mapping[str, str], file: Path) -> None:
        """``scopes``: what may be written, with its name; ``file``: the name that is proposed."""
        super().__init__()
        self._scopes = dict(scopes)
        self._file = file

    def heading(self) -> str:
        """What is done."""
        return "export rollouts"

    def content(self) -> ComposeResult:
        """Lay out the choice and the file."""
        with RadioSet():
            for place, words in enumerate(self._scopes.values()):
                yield Choice(words.replace("[", "\\["), value=place == 0)
        yield Input(str(self._file), max_length=500, select_on_focus=False)
        yield Label("One record per line; a .txt file gets plain text.", id="hint")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Answer with what to write."""
        event.stop()
        if event.value.strip():
            place = max(0, self.query_one(RadioSet).pressed_index)
            self.dismiss(Export(list(self._scopes)[place], Path(event.value.strip()).expanduser()))

    def action_leave(self) -> None:
        """Leave and write nothing."""
        self.dismiss(None)
