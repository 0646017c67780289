"""A grid of characters with their kinds, in which each cell may also hold 2 x 4 braille dots, over a band. Pure.

Coordinates count from the upper left: cells (column, row), dots (2 · column + 0…1, 4 · row + 0…3).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

Run = tuple[str, str]
"""Text and its kind."""
Dot = tuple[int, int]
_MASKS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_BLANK = (" ", "")
BAND, EDGE = "band", "edge"
"""The kinds of a blank cell within the band, and of one that the band fills by half."""
WITHIN = "+band"
"""What the kind of anything else ends with where it lies in the band."""
FAINT = "ghost"
"""The kind of dots that give way to those of any other kind."""


class Canvas:
    """A grid of characters: what is put later covers what was there; the dots of one cell add up."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self._cells = [[_BLANK] * columns for _ in range(rows)]
        self._dots: dict[Dot, int] = {}
        self._band: dict[int, tuple[int, int]] = {}

    def put(self, column: int, row: int, text: str, kind: str) -> None:
        """Put characters of width 1, from a cell to the right; what has no room is left out."""
        for place, character in enumerate(text, column):
            if 0 <= place < self.columns and 0 <= row < self.rows:
                self._cells[row][place] = (character, kind)
                self._dots.pop((place, row), None)

    def put_behind(self, column: int, row: int, text: str, kind: str) -> None:
        """Put characters likewise, but only into empty cells."""
        for place, character in enumerate(text, column):
            if 0 <= place < self.columns and 0 <= row < self.rows and self._cells[row][place] == _BLANK:
                self.put(place, row, character, kind)

    def dot(self, x: int, y: int, kind: str) -> None:
        """Draw one dot; its cell takes its kind, and loses a character or a shade."""
        cell = (x // 2, y // 4)
        if 0 <= cell[0] < self.columns and 0 <= cell[1] < self.rows:
            covers = kind != FAINT and self._cells[cell[1]][cell[0]][1] == FAINT
            mask = (0 if covers else self._dots.get(cell, 0)) | _MASKS[x % 2][y % 4]
            self._dots[cell] = mask
            self._cells[cell[1]][cell[0]] = (chr(0x2800 + mask), kind)

    def line(self, dots: Sequence[Dot], kind: str) -> None:
        """Draw a line from dot to dot."""
        for (x0, y0), (x1, y1) in zip(dots, [*dots[1:], *dots[-1:]], strict=True):
            parts = max(abs(x1 - x0), abs(y1 - y0), 1)
            for part in range(parts + 1):
                self.dot(x0 + round((x1 - x0) * part / parts), y0 + round((y1 - y0) * part / parts), kind)

    def fill(self, x: int, top: int, bottom: int) -> None:
        """Fill the band's column of cells at ``x`` from one row of dots to another; two calls for one column add up."""
        above, below = self._band.get(x // 2, (top, bottom))
        self._band[x // 2] = (min(above, top), max(below, bottom))

    def lines(self) -> list[list[Run]]:
        """Every row as runs of one kind."""
        shown = [list(row) for row in self._cells]
        for column, (top, bottom) in self._band.items():
            if 0 <= column < self.columns:
                self._show_band(shown, column, top // 2, bottom // 2)
        return [
            [("".join(text for text, _ in run), kind) for kind, run in groupby(cells, key=lambda cell: cell[1])]
            for cells in shown
        ]

    def _show_band(self, shown: list[list[Run]], column: int, first: int, last: int) -> None:
        """Put the band behind one column; ``first`` and ``last`` count halves of cells."""
        for row in range(max(0, first // 2), min(self.rows - 1, last // 2) + 1):
            text, kind = shown[row][column]
            upper, lower = 2 * row >= first, 2 * row + 1 <= last
            if (text, kind) != _BLANK:
                shown[row][column] = (text, kind + WITHIN)
            elif upper and lower:
                shown[row][column] = (" ", BAND)
            else:
                shown[row][column] = ("▀" if upper else "▄", EDGE)
