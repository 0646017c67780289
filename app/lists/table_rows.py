"""What a table shows: its columns, its rows, and their texts as wide as the columns. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..words.format import cells, clip, pad


@dataclass(frozen=True)
class Column:
    """A column: its width in cells, and the field by which it sorts."""

    name: str
    width: int
    sort: str = ""
    right: bool = False


@dataclass(frozen=True)
class Cell:
    """Safe text and its style, which may name theme variables: ``bold $text-error``."""

    text: str
    style: str = ""


@dataclass(frozen=True)
class Row:
    """A row with its key."""

    key: str
    cells: tuple[Cell, ...]
    """One for each column."""
    below: Cell | None = None
    """A second line over all columns."""


def title(column: Column, mark: str = "") -> str:
    """The head of a column, with a ``mark`` of its order behind the name."""
    return f"{pad(f'{column.name}{mark}', column.width, column.right)} "


def filling(column: Column, text: str) -> str:
    """A text that fills its column."""
    return f"{pad(clip(text, column.width), column.width, column.right)} "


def parts(text: str, widths: Sequence[int]) -> list[str]:
    """A text cut into pieces that lie side by side in columns; each piece fills its column.

    A wide character that would lie in two columns begins in the next; what has no room is left out, with an ellipsis.
    """
    rest, found = clip(text, sum(widths)), []
    for width in widths:
        taken = used = 0
        for character in rest:
            used += cells(character)
            if used > width:
                break
            taken += 1
        found.append(pad(rest[:taken], width))
        rest = rest[taken:]
    return found
