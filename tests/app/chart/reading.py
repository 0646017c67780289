"""Reads a chart back: its characters, and where its curve runs."""

from __future__ import annotations

from marlaas.app.chart.draw import BAND, EDGE, WITHIN, Drawing, draw
from marlaas.app.chart.plot import Plot

_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


def text(plot: Plot, width: int, height: int) -> list[str]:
    """The chart's lines."""
    return joined(draw(plot, width, height))


def joined(drawing: Drawing) -> list[str]:
    """A drawing's lines."""
    return ["".join(run for run, _ in line) for line in drawing.lines]


def dots(drawing: Drawing, kind: str) -> dict[int, list[int]]:
    """The rows (from the top) of the braille dots of a kind, by column of dots."""
    found: dict[int, list[int]] = {}
    for row, line in enumerate(drawing.lines):
        column = 0
        for run, its_kind in line:
            for character in run:
                mask = ord(character) - 0x2800 if its_kind.removesuffix(WITHIN) == kind else 0
                for x in (0, 1):
                    for y in range(4):
                        if 0 <= mask < 256 and mask & _BITS[x][y]:
                            found.setdefault(2 * column + x, []).append(4 * row + y)
                column += 1
    return found


def band(drawing: Drawing) -> dict[int, list[int]]:
    """The rows of half cells (from the top) that the band fills, by column of cells."""
    found: dict[int, list[int]] = {}
    for row, line in enumerate(drawing.lines):
        column = 0
        for run, kind in line:
            for character in run:
                if kind == EDGE:
                    found.setdefault(column, []).append(2 * row + (character == "▄"))
                elif kind == BAND or kind.endswith(WITHIN):
                    found.setdefault(column, []).extend((2 * row, 2 * row + 1))
                column += 1
    return found
