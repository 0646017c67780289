"""The protocol of questions: what the feed needs to know of one, and nothing about who asks."""

from __future__ import annotations

from typing import Any, Protocol

from ..reading.home_reader import HomeReader


class Question(Protocol):
    """Asked by a view while it is shown; compared by ``==``, so that the same question is not read twice."""

    def read(self, reader: HomeReader, before: Any) -> Any:
        """Read the answer in the feed's thread, or take parts from ``before``, the last one. Raises ``StoreError``."""
