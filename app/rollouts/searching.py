"""Searches for a word in everything that was said, from the newest conversation back.

Hits are reported as they are found. Texts are searched in their stored form; only possible hits are parsed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..reading.home_reader import HomeReader

CHUNK = 256
"""Conversations that are read at once."""


@dataclass(frozen=True)
class Progress:
    """How far a search has come."""

    looked: int
    """Conversations searched so far."""
    hits: tuple[int, ...]
    """Hits since the last report."""


def search(reader: HomeReader, ids: Sequence[int], word: str) -> Iterator[Progress]:
    """Find the conversations in which somebody says ``word``, whatever the case. Raises ``StoreError``."""
    stored = json.dumps(word)[1:-1].lower() if word.isascii() else ""  # the escapes of É and é are not alike
    for start in range(0, len(ids), CHUNK):
        chunk = ids[start : start + CHUNK]
        said = reader.conversation_texts(chunk)
        hits = tuple(key for key in chunk if stored in (text := said.get(key, "")).lower() and _says(text, word))
        yield Progress(min(start + CHUNK, len(ids)), hits)


def _says(stored: str, word: str) -> bool:
    """Whether the word is in the text that was said, and not in the JSON around it."""
    folded = word.lower()
    return any(folded in text.lower() for turns in json.loads(f"[{stored}]") for text in _texts(turns))


def _texts(turns: list[dict[str, str]]) -> list[str]:
    return [turn["text"] for turn in turns]
