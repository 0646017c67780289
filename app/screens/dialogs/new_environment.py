"""Asks for the name and shape of a new environment, and writes its template where that name is free."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Input, Label, Static

from marlaas.engine.errors import ConfigError
from marlaas.engine.home import Home

from ...context.application import Application
from ...context.editor import opened
from ...home.environments.templates import LONGEST, SHAPES, write_template
from ...words.format import line
from .dialog import Dialog


class NewEnvironment(Dialog[Path | None]):
    """Answers with the path of what was written; with None where the person left."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "shape(-1)", "shape", key_display="↑↓", priority=True, id="new.up"),
        Binding("down", "shape(1)", "shape", show=False, priority=True, id="new.down"),
        Binding("escape", "leave", "close", key_display="esc", id="new.leave"),
    ]
    DEFAULT_CSS = """
    NewEnvironment Label { width: 100%; }
    NewEnvironment Label#problem { color: $text-error; }
    NewEnvironment #shapes { padding: 0 1; }
    """
    AUTO_FOCUS = "Input"
    ENTER = "write the template"

    def __init__(self, home: Home) -> None:
        super().__init__()
        self._home = home
        self._shape = 0

    def content(self) -> ComposeResult:
        """Lay out name, shapes and a place for errors."""
        yield Label("What is the environment called? Letters, digits and _.", markup=False)
        yield Input(max_length=LONGEST)
        yield Label("What does it do?", markup=False)
        yield Static(self._shapes(), id="shapes")
        yield Label("", id="problem", markup=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Write the template, or show why it cannot be written."""
        event.stop()
        shape = list(SHAPES)[self._shape]
        try:
            written = write_template(event.value.strip(), shape, self._home.create().plugins, self._home)
        except ConfigError as error:
            self.query_one("#problem", Label).update(line(str(error), 300))
            return
        self.dismiss(next(path for path in written if path.suffix == ".py"))

    def action_shape(self, step: int) -> None:
        """Choose another shape."""
        self._shape = (self._shape + step) % len(SHAPES)
        self.query_one("#shapes", Static).update(self._shapes())

    def action_leave(self) -> None:
        """Leave and write nothing."""
        self.dismiss(None)

    def _shapes(self) -> Content:
        """A line for each shape, the chosen one marked."""
        rows = []
        for place, (name, what) in enumerate(SHAPES.items()):
            mark, style = ("▸", "bold") if place == self._shape else (" ", "")
            rows.append(Content.styled(f"{mark} {name:<8} {what}", style))
        return Content("\n").join(rows)


def write_environment(app: Application, then: str = "", *, tell: Callable[[Path], None] = lambda path: None) -> None:
    """Ask for name and shape, write the template, open it in the editor; the notice about it ends with ``then``.

    ``tell`` hears of what was written before the editor opens.
    """

    def written(path: Path | None) -> None:
        if path is not None:
            tell(path)
            saved = opened(app, path)
            app.say(f"{path} is {'saved' if saved else 'written, and runs as it is'}.{then and f' {then}'}")

    app.push_screen(NewEnvironment(app.home), written)
