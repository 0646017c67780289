"""Finds the answer in what a model said, before a scorer sees it.

Scorers of other libraries compare texts: to one of them "The answer is 8" is worth 0.067 where "8" is worth 1.
"""

from __future__ import annotations

from collections.abc import Callable

Extract = Callable[[str], str]

_OPENING, _CLOSING = "<answer>", "</answer>"


def whole(text: str) -> str:
    """What stands in the last ``<answer>`` tag; without one the whole reply. White space around it is removed."""
    start = text.rfind(_OPENING)
    if start < 0:
        return text.strip()
    inside = text[start + len(_OPENING) :]
    return inside.partition(_CLOSING)[0].strip()


def last_line(text: str) -> str:
    """What stands in the last ``<answer>`` tag; without one the last line that is not empty."""
    return whole(text).rpartition("\n")[2].strip()


EXTRACTS: dict[str, Extract] = {"whole": whole, "last_line": last_line}


def extract_of(chosen: str | Extract) -> Extract:
    """The function of that name, or the author's own; the ``ValueError`` for another name lists the known ones."""
    if not isinstance(chosen, str):
        return chosen
    if chosen not in EXTRACTS:
        raise ValueError(f"extract must be one of {', '.join(EXTRACTS)} or a function, not {chosen!r}")
    return EXTRACTS[chosen]
