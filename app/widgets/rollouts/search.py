"""A search under way: a thread looks through what was said, and says now and then how far it is. Takes no room."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic

from textual.message import Message
from textual.widget import Widget
from textual.worker import get_current_worker

from marlaas.engine.errors import MarlaasError
from marlaas.engine.home import Home

from ...reading.opening import opened
from ...rollouts.searching import search
from ...words.format import counted, line, share

PAUSE = 0.25
"""Seconds between two reports."""


class Search(Widget):
    """One at a time: a new one ends the one before."""

    DEFAULT_CSS = "Search { display: none; }"

    @dataclass
    class Came(Message):
        """Where a search stands."""

        word: str
        hits: Sequence[int]
        """All so far, the newest first."""
        words: str
        """For people."""
        bad: bool = False

    def __init__(self, home: Home) -> None:
        super().__init__()
        self._home = home
        self.word = ""

    def begin(self, word: str, task: int, failures: bool) -> None:
        """Look for a word in a task; an empty one only ends the search that is under way."""
        self.word = word
        self.workers.cancel_group(self, "search")
        if word:
            look = partial(self._look, word, task, failures)
            self.run_worker(look, thread=True, group="search", exclusive=True, exit_on_error=False)

    def _look(self, word: str, task: int, failures: bool) -> None:
        worker, hits, told = get_current_worker(), array("q"), monotonic()
        try:
            with opened(self._home) as reader:
                ids = reader.conversation_ids(task, failures=failures)
                for progress in search(reader, ids, word):
                    if worker.is_cancelled:
                        return
                    hits.extend(progress.hits)
                    if monotonic() - told > PAUSE:
                        told = monotonic()
                        self._say(
                            word, hits, f"{counted(len(hits), 'hit')}, {share(progress.looked / len(ids))} searched"
                        )
            self._say(word, hits, f"{counted(len(hits), 'hit')} for “{line(word, 30)}”")
        except MarlaasError as error:
            self.post_message(self.Came(word, hits, error.message, bad=True))

    def _say(self, word: str, hits: array[int], words: str) -> None:
        if not get_current_worker().is_cancelled:
            self.post_message(self.Came(word, array("q", hits), words))
