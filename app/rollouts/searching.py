"""Looking for a word in everything that was said, from the newest conversation back.

Hits come as they are found. What is stored is looked through as it is stored; only what may be a hit is taken apart.
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
    """Conversations so far."""
    hits: tuple[int, ...]
    """Found since the last one."""


def search(reader: HomeReader, ids: Sequence[int], word: str) -> Iterator[Progress]:
    """Conversations in which somebody says ``word``, upper and lower case being the same. Raises ``StoreError``."""
    stored = json.dumps(word)[1:-1].lower() if word.isascii() else ""  # escapes of É and é have nothing in common
    for start in range(0, len(ids), CHUNK):
        chunk = ids[start : start + CHUNK]
        said = reader.conversation_texts(chunk)
        hits = tuple(key for key in chunk if stored in (text := said.get(key, "")).lower() and _says(text, word))
        yield Progress(min(start + CHUNK, len(ids)), hits)


def _says(stored: str, word: str) -> bool:
    """Whether the word stands in what was said, and not in the JSON around it."""
    folded = word.lower()
    return any(folded in text.lower() for turns in json.loads(f"[{stored}]") for text in _texts(turns))


def _texts(turns: list[dict[str, str]]) -> list[str]:
    return [turn["text"] for turn in turns]
