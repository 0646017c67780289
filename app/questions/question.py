"""The form of a question: what the feed needs to know of it, and nothing about who asks."""

from __future__ import annotations

from typing import Any, Protocol

from ..reading.home_reader import HomeReader


class Question(Protocol):
    """Asked by a view while it is seen; compared by ``==``, so that the same one is not read twice."""

    def read(self, reader: HomeReader, before: Any) -> Any:
        """The answer, read in the feed's thread. ``before`` is the last answer to this question, or None: what has
        not changed can be taken from it. Raises ``StoreError``."""
