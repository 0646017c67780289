"""Finds the answer in a model's reply for a scorer.

Scorers of other libraries compare texts: one gives 0.067 for "The answer is 8", but 1 for "8".
"""

from __future__ import annotations

from collections.abc import Callable

Extract = Callable[[str], str]

_OPENING, _CLOSING = "<answer>", "</answer>"


def whole(text: str) -> str:
    """The content of the last ``<answer>`` tag, else the whole reply, stripped."""
    start = text.rfind(_OPENING)
    if start < 0:
        return text.strip()
    inside = text[start + len(_OPENING) :]
    return inside.partition(_CLOSING)[0].strip()


def last_line(text: str) -> str:
    """The content of the last ``<answer>`` tag, else the last non-empty line."""
    return whole(text).rpartition("\n")[2].strip()


EXTRACTS: dict[str, Extract] = {"whole": whole, "last_line": last_line}


def extract_of(chosen: str | Extract) -> Extract:
    """The function of that name, or the author's own; the ``ValueError`` for another name lists the known ones."""
    if not isinstance(chosen, str):
        return chosen
    if chosen not in EXTRACTS:
        raise ValueError(f"extract must be one of {', '.join(EXTRACTS)} or a function, not {chosen!r}")
    return EXTRACTS[chosen]
