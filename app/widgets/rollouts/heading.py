"""The line above a list that names its columns: words in a rule. Pure."""

from __future__ import annotations

from ...words.format import cells
from ..virtual_list import GUTTER

RULE = "─"


def heading(*columns: tuple[int, str]) -> str:
    """A title for a list's upper border: each word begins at its cell, as cells of a row's text are counted.

    A column without a word is left out, as is one that begins before the word of the one before has ended.
    """
    title = ""
    for at, word in columns:
        missing = at + GUTTER - cells(title)
        if word and missing >= 0:
            title += (RULE * (missing - 1) + " " if missing else "") + f"{word} "
    return title
