"""A view over rows that a thread reads as they come into sight, so that a slow disk never delays a key.

Rows go into ``pages``. One thread at a time reads what is in sight when it begins: what was scrolled past is never
read. Each page has a connection of its own, so that none is kept open, and a database that was replaced is read as it
is. Knows no cursor and no SQL.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic

from textual.message import Message
from textual.scroll_view import ScrollView
from textual.worker import get_current_worker

from marlaas.engine.errors import MarlaasError

from ..lists.paging import Listing, Pages, Row
from ..reading.home_reader import HomeReader

OpenReader = Callable[[], HomeReader]
"""Opens a connection for one page; raises ``StoreError``."""


class PagedView(ScrollView, Generic[Row]):
    """Reads the rows that subclasses want to show."""

    def __init__(self, open_reader: OpenReader, **options: Any) -> None:
        super().__init__(**options)
        self.pages: Pages[Row] = Pages()
        self.problem = ""
        """Why the last page could not be read; the next listing, or a move of the cursor, tries again."""
        self._open_reader = open_reader
        self._reading = False

    @abstractmethod
    def places_wanted(self) -> Iterable[range]:
        """Places whose rows are needed, the most urgent first."""

    @abstractmethod
    def rows_came(self, ids: Collection[int]) -> None:
        """Rows have been read, or it is known why they cannot be."""

    def read_on(self) -> None:
        """Read the next page that is needed, unless one is being read."""
        if self._reading or not self.is_mounted:
            return
        wanted = (self.pages.wanted(places.start, places.stop) for places in self.places_wanted())
        ids = next(filter(None, wanted), None)
        if ids is not None:
            self._reading = True
            read = partial(self._read, self.pages.listing, ids, self.pages.generation)
            self.run_worker(read, thread=True, exit_on_error=False)

    def _read(self, listing: Listing[Row], ids: list[int], generation: int) -> None:
        try:
            with self._open_reader() as reader:
                rows, problem = listing.read(reader, ids), ""
        except MarlaasError as error:
            rows, problem = {}, str(error)
        except Exception as error:  # of an invalid row; unreported, the view would wait for this page for ever
            rows, problem = {}, f"These rows cannot be read: {type(error).__name__}: {error}"
        if not get_current_worker().is_cancelled:
            self.post_message(_Read(ids, rows, listing.stamp, generation, problem))

    def on__read(self, message: _Read) -> None:
        """Take over a page from the thread."""
        self._reading, self.problem = False, message.problem
        if not message.problem:
            if message.generation == self.pages.generation:
                self.pages.keep(message.ids, message.rows, message.stamp)
            self.read_on()
        self.rows_came(message.ids)


@dataclass
class _Read(Message, bubble=False):
    """A page from the thread."""

    ids: list[int]
    rows: Mapping[int, Any]
    stamp: object
    generation: int
    problem: str
