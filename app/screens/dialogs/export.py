"""Where an adapter is to be written, and whether llama.cpp is to read it as well."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Label


@dataclass(frozen=True)
class ExportWish:
    """What the person wants."""

    folder: Path
    gguf: bool


class ExportDialog(ModalScreen[ExportWish | None]):
    """Answers with the wish, or with None where the person left."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+g", "answer(True)", "with GGUF", id="export.gguf"),
        Binding("escape", "leave", "leave", id="export.leave"),
    ]
    DEFAULT_CSS = """
    ExportDialog { align: center middle; }
    ExportDialog > Vertical { width: 72; max-width: 95%; height: auto; padding: 1 2; background: $surface;
                              border: round $primary; }
    ExportDialog Label, ExportDialog Input { width: 100%; margin-bottom: 1; }
    ExportDialog Horizontal { height: auto; align-horizontal: center; }
    ExportDialog Button { margin: 0 1; }
    """

    def __init__(self, what: str, folder: Path) -> None:
        """``what`` is exported, and ``folder`` is proposed."""
        super().__init__()
        self._what = what
        self._folder = folder

    def compose(self) -> ComposeResult:
        """Lay out a folder and a choice."""
        with Vertical():
            yield Label(f"Export {self._what} as a PEFT folder. The folder must not exist yet.", markup=False)
            yield Input(str(self._folder), max_length=4000, select_on_focus=False)
            with Horizontal():
                yield Button("PEFT (enter)", id="peft", variant="primary", compact=True)
                yield Button("PEFT and GGUF (ctrl+g)", id="gguf", compact=True)
                yield Button("Leave (esc)", id="leave", compact=True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Export on enter."""
        self.action_answer(False)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Answer with the button that was chosen."""
        if event.button.id == "leave":
            self.action_leave()
        else:
            self.action_answer(event.button.id == "gguf")

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
