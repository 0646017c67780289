"""Rows of long lists, read page by page: which rows are in memory, and which are to be read next.

A listing is ids in the order shown, and how to read some of them. Rows are kept by id, so that what is known stays
known when others come before it. Knows neither threads nor widgets.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from ..reading.home_reader import HomeReader

Row = TypeVar("Row")

PAGE = 64
"""Rows that are read at once."""
KEPT = 32 * PAGE
"""Rows that are kept; more than any screen shows."""


@dataclass(frozen=True, eq=False)
class Listing(Generic[Row]):
    """The rows that a list shows."""

    ids: Sequence[int]
    """Of all rows, in order; an ``array`` holds 100,000 of them in less than a megabyte."""
    read: Callable[[HomeReader, Sequence[int]], Mapping[int, Row]] = field(default=lambda reader, ids: {})
    """Reads some rows by id, in a thread; rows that are gone are left out."""
    stamp: object = 0
    """Rows read under another stamp are shown until they have been read again."""
    at_hand: Mapping[int, Row] | None = None
    """All rows, where they are in memory already."""

    @classmethod
    def of(cls, rows: Mapping[int, Row]) -> Listing[Row]:
        """A listing of rows that are in memory, in their order."""
        return cls(tuple(rows), at_hand=rows)


class Pages(Generic[Row]):
    """Keeps the most recently used rows, of one listing at a time."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._rows: OrderedDict[int, tuple[object, Row | None]] = OrderedDict()
        self.listing: Listing[Row] = Listing(())
        self.generation = 0
        """Rows that were asked for in another generation are dropped."""

    def show(self, listing: Listing[Row]) -> None:
        """Show this listing; equal ids mean the same rows as in the one before."""
        self.listing = listing

    def forget(self) -> None:
        """Forget all rows: equal ids mean other rows in the next listing."""
        self._rows.clear()
        self.generation += 1

    def row(self, place: int) -> Row | None:
        """The row at a place, if it is in memory."""
        if not 0 <= place < len(self.listing.ids):
            return None
        key = self.listing.ids[place]
        if self.listing.at_hand is not None:
            return self.listing.at_hand.get(key)
        if key not in self._rows:
            return None
        self._rows.move_to_end(key)
        return self._rows[key][1]

    def among(self, ids: Iterable[int]) -> list[Row]:
        """The rows of some ids that are in memory."""
        found = (self._rows.get(key, (0, None))[1] for key in ids)
        return [row for row in found if row is not None]

    def known(self, place: int) -> bool:
        """Whether it is known what is at a place; a row that is gone counts as known."""
        return self.listing.at_hand is not None or self.listing.ids[place] in self._rows

    def wanted(self, first: int, stop: int) -> list[int]:
        """Ids of the next page to read so that all places from ``first`` to ``stop`` are known; empty: they are."""
        ids = self.listing.ids
        for place in range(max(0, first), min(stop, len(ids))):
            if self._is_wanted(ids[place]):
                start = place // PAGE * PAGE
                return [key for key in ids[start : start + PAGE] if self._is_wanted(key)]
        return []

    def keep(self, ids: Sequence[int], rows: Mapping[int, Row], stamp: object) -> None:
        """Remember what was read for ``ids``; those of them that ``rows`` lacks are gone."""
        for key in ids:
            self._rows[key] = (stamp, rows.get(key))
            self._rows.move_to_end(key)
        while len(self._rows) > self._kept:
            self._rows.popitem(last=False)

    def _is_wanted(self, key: int) -> bool:
        found = self._rows.get(key)
        return self.listing.at_hand is None and (found is None or found[0] != self.listing.stamp)
