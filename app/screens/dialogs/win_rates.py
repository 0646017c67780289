"""How the versions of a policy did against others: a table for each opponent.

The tables are read in a thread, once. What has no room is left out, and the screen says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content

from marlaas.engine.errors import MarlaasError
from marlaas.engine.home import Home
from marlaas.engine.spec import ONLY

from ...lists.learners import Learner
from ...reading.opening import opened
from ...words.format import pad
from ...words.scores.matrix import CELL, Matrix, Meeting, cell_text, matrices, shown
from .reading import Reading

_VERSION = 6
_ROWS = 300
"""Versions that are shown, spread over all of them."""
_NONE = (
    "No version of this policy has met another one yet, in plays that are stored.\n\n"
    "A policy meets others where several speak in an episode: other policies, a pool of its earlier versions,"
    ' a frozen one, or under [eval] with agents = { second = "player@0" }.'
)
_LEGEND = "row against column: mean reward ± error, n episodes of both; · none"


class WinRates(Reading):
    """Shows the tables."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("w", "dismiss", "close", show=False, id="rates.close")]
    DEFAULT_CSS = "WinRates > Vertical { max-width: 150; }"
    TALL = False

    def __init__(self, home: Home, learner: Learner) -> None:
        super().__init__()
        self._home, self._learner = home, learner
        self._found: Sequence[Matrix] | None = None
        self._problem = ""

    def heading(self) -> str:
        """Whose win-rates they are."""
        return f"win-rates of {self._learner.words}"

    def legend(self) -> Content:
        """How to read a cell."""
        return Content(_LEGEND)

    def text(self, width: int) -> Content:
        """The tables, or why there are none."""
        if self._found is None:
            return Content("Reading …")
        tables = [drawn(matrix, max(_VERSION + CELL, width)) for matrix in self._found]
        return Content("\n\n").join(tables) if tables else Content.styled(self._problem or _NONE, "$text-muted")

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
        self.draw()


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
