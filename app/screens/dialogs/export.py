"""Where an adapter is to be written, and whether llama.cpp is to read it as well."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input, Label

from .dialog import Dialog


@dataclass(frozen=True)
class ExportWish:
    """What the person wants."""

    folder: Path
    gguf: bool


class ExportDialog(Dialog[ExportWish | None]):
    """Answers with the wish, or with None where the person left."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+g", "answer(True)", "PEFT and GGUF", id="export.gguf"),
        Binding("escape", "leave", "close", key_display="esc", id="export.leave"),
    ]
    DEFAULT_CSS = "ExportDialog Label, ExportDialog Input { width: 100%; margin-bottom: 1; }"
    ENTER = "PEFT"

    def __init__(self, what: str, folder: Path) -> None:
        """``what`` is exported, and ``folder`` is proposed."""
        super().__init__()
        self._what = what
        self._folder = folder

    def content(self) -> ComposeResult:
        """Lay out a sentence and the folder."""
        yield Label(f"Export {self._what} as a PEFT folder. The folder must not exist yet.", markup=False)
        yield Input(str(self._folder), max_length=4000, select_on_focus=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Export on enter."""
        self.action_answer(False)

    def action_leave(self) -> None:
        """Leave and write nothing."""
        self.dismiss(None)

    def action_answer(self, gguf: bool) -> None:
        """Answer with the folder, if one is named."""
        field = self.query_one(Input)
        said = field.value.strip()
        if not said or "\x00" in said:
            field.add_class("-invalid")
            return
        self.dismiss(ExportWish(Path(said).expanduser(), gguf))
