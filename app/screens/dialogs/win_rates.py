"""How the versions of a policy did against others: a table for each opponent.

The tables are read in a thread, once. What has no room is left out, and the screen says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.screen import ModalScreen
from textual.widgets import Footer, Static

from marlaas.engine.errors import MarlaasError
from marlaas.engine.home import Home
from marlaas.engine.spec import ONLY

from ...lists.learners import Learner
from ...reading.opening import opened
from ...words.format import pad
from ...words.matrix import CELL, Matrix, Meeting, cell_text, matrices, shown

_VERSION = 6
_ROWS = 300
"""Versions that are shown, spread over all of them."""
_NONE = (
    "No version of this policy has met another one yet, in plays that are stored.\n\n"
    "A policy meets others where several speak in an episode: other policies, a pool of its earlier versions,"
    ' a frozen one, or under [eval] with agents = { second = "player@0" }.'
)
_LEGEND = "row against column: mean reward ± standard error, n episodes in which both spoke"


class WinRates(ModalScreen[None]):
    """Scrolls over the tables."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,w,q", "dismiss", "close", key_display="esc", id="rates.close"),
        Binding("j", "down", show=False, id="rates.down"),
        Binding("k", "up", show=False, id="rates.up"),
    ]
    DEFAULT_CSS = """
    WinRates { align: center middle; }
    WinRates > Vertical { width: 96%; max-width: 150; height: 92%; background: $surface; border: round $primary;
                          padding: 0 1; }
    WinRates VerticalScroll { height: 1fr; }
    WinRates #legend { height: 1; color: $text-muted; }
    """
    AUTO_FOCUS = "VerticalScroll"

    def __init__(self, home: Home, learner: Learner) -> None:
        super().__init__()
        self._home, self._learner = home, learner
        self._found: Sequence[Matrix] | None = None
        self._problem = ""

    def compose(self) -> ComposeResult:
        """Lay out legend, tables and keys."""
        with Vertical() as frame:
            frame.border_title = Content(f"win-rates of {self._learner.words}")
            yield Static(_LEGEND, id="legend", markup=False)
            with VerticalScroll():
                yield Static("Reading …", id="tables", markup=False)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Read the tables."""
        self.run_worker(partial(self._read), thread=True, exit_on_error=False)

    def _read(self) -> None:
        found: list[Matrix] = []
        problem, own = "", self._learner
        try:
            with opened(self._home) as reader:
                task = reader.task(own.task)
                found = matrices(reader.matchups(own.task), task.policies if task else (), own.policy or ONLY)
        except MarlaasError as error:
            problem = str(error)
        self.app.call_from_thread(self._came, found, problem)

    def _came(self, found: Sequence[Matrix], problem: str) -> None:
        self._found, self._problem = found, problem
        self._draw()

    def on_resize(self, event: Resize) -> None:
        """Fit the columns to the new width."""
        self.call_after_refresh(self._draw)

    def _draw(self) -> None:
        if self._found is None:
            return
        tables = self.query_one("#tables", Static)
        width = max(_VERSION + CELL, self.query_one(VerticalScroll).scrollable_content_region.width)
        text = Content("\n\n").join([drawn(matrix, width) for matrix in self._found])
        tables.update(text if self._found else Content.styled(self._problem or _NONE, "$text-muted"))

    def action_down(self) -> None:
        """Scroll one line down."""
        self.query_one(VerticalScroll).scroll_down()

    def action_up(self) -> None:
        """Scroll one line up."""
        self.query_one(VerticalScroll).scroll_up()


def drawn(matrix: Matrix, width: int) -> Content:
    """A table in lines of ``width`` cells: as many columns as fit, spread over all of them."""
    columns = matrix.columns_for((width - _VERSION) // CELL)
    left_out = len(matrix.columns) - len(columns)
    note = f"   ({left_out} of {len(matrix.columns)} columns have no room)" if left_out else ""
    head = "".join(pad(f"v{column}", CELL, right=True) for column in columns)
    lines = [
        Content.assemble((matrix.title, "bold"), (note, "$text-muted")),
        Content.styled(" " * _VERSION + head, "$text-muted"),
    ]
    for row in shown(matrix.rows, _ROWS):
        cells = [matrix.cells.get((row, column)) for column in columns]
        if any(cells):
            parts = [(pad(cell_text(cell), CELL, right=True), _style(cell)) for cell in cells]
            lines.append(Content.assemble((pad(f"v{row}", _VERSION), "$text-muted"), *parts))
    return Content("\n").join(lines)


def _style(meeting: Meeting | None) -> str:
    """The style of a cell that is off one half by more than twice the standard error; the numbers show it as well."""
    if meeting is None:
        return "$text-disabled"
    if abs(meeting.mean - 0.5) <= 2 * meeting.stderr or meeting.games < 2:
        return ""
    return "$text-success" if meeting.mean > 0.5 else "$text-error"
