"""Token ids as pieces of text: a character that takes several tokens is one piece of all of them.

The texts of the pieces joined are what the ids say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from marlaas.engine.errors import MarlaasError
from marlaas.engine.home import Home

Decode = Callable[[Sequence[int]], str]

HALF = "\ufffd"
"""What a tokenizer prints for bytes that are no whole character."""
LONGEST = 6
"""Most tokens of one character; bytes that never make up one are shown as they are."""


@dataclass(frozen=True)
class Piece:
    """Tokens ``start`` to ``stop`` and what they say."""

    text: str
    start: int
    stop: int


def pieces(ids: Sequence[int], decode: Decode) -> list[Piece]:
    """The pieces of some ids. Each is decoded behind the one before: many tokenizers drop a space at a beginning."""
    found: list[Piece] = []
    before, start = 0, 0
    for stop in range(1, len(ids) + 1):
        known = decode(ids[before:start]) if start > before else ""
        text = decode(ids[before:stop])[len(known) :]
        if text.endswith(HALF) and stop - start < LONGEST and stop < len(ids):
            continue
        found.append(Piece(text, start, stop))
        before, start = start, stop
    return found


@cache
def decoder(base: Path) -> Decode:
    """The decoder of the base in a folder, which accepts any number; slow the first time. Raises ``BaseModelError``."""
    from marlaas.engine.rollout import Vocabulary

    vocabulary = Vocabulary(base / "tokenizer.json")
    return lambda ids: vocabulary.decode([id for id in ids if id >= 0])


def home_decoder(home: Home) -> tuple[Decode | None, str]:
    """The decoder of the base that a home is set to, or why there is none, in one sentence."""
    from marlaas.engine.base import find_base
    from marlaas.engine.home import load_settings

    try:
        return decoder(find_base(load_settings(home).base)), ""
    except MarlaasError as error:
        return None, f"The tokens cannot be read: {error.message}"
