"""A search in a thread through everything that was said, which reports its progress. Takes no room."""

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
    """One search at a time: a new one ends the one before."""

    DEFAULT_CSS = "Search { display: none; }"

    @dataclass
    class Came(Message):
        """The state of a search."""

        word: str
        hits: Sequence[int]
        """All hits so far, newest first."""
        words: str
        """The state in words."""
        bad: bool = False

    def __init__(self, home: Home) -> None:
        super().__init__()
        self._home = home
        self.word = ""

    def begin(self, word: str, task: int, failures: bool) -> None:
        """Search for a word in a task; an empty word only ends the present search."""
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
