"""What the view of logs shows: events of the store that pass a filter, or the end of a log file."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from marlaas.engine.home import Home
from marlaas.engine.store import EventFilter

from ..home.log_files import LogLine, Tail, fits, names, tail
from ..lists.paging import Listing
from ..reading.home_reader import HomeReader
from ..words.log_words import EVENTS


@dataclass(frozen=True, eq=False)
class LogsAnswer:
    """The lines in order, and the log files that exist."""

    listing: Listing[LogLine]
    files: tuple[str, ...] = ()
    oldest: int = 0
    """The oldest event that the store keeps; where that changes, older ones were removed."""
    last: int = 0
    """The newest event that was looked at."""
    tail: Tail = field(default_factory=Tail)


@dataclass(frozen=True)
class LogsQuestion:
    """Asks for one log of a home."""

    home: Home
    source: str
    """``EVENTS``, or the name of a file in the home's folder of logs."""
    wanted: EventFilter

    def read(self, reader: HomeReader, before: LogsAnswer | None) -> LogsAnswer:
        """Read only what was added; the same listing where nothing was."""
        files = names(self.home.logs)
        return self._events(reader, before, files) if self.source == EVENTS else self._file(before, files)

    def _events(self, reader: HomeReader, before: LogsAnswer | None, files: tuple[str, ...]) -> LogsAnswer:
        oldest, last = reader.event_bounds()
        known = before if before is not None and before.oldest == oldest else None
        found = reader.event_ids(self.wanted, known.last if known else 0)
        if found:
            last = max(last, found[-1])  # an event came between the two queries
        if known is None:
            return LogsAnswer(_listing(found), files, oldest, last)
        listing = _listing(array("q", known.listing.ids) + found) if found else known.listing
        return LogsAnswer(listing, files, oldest, last)

    def _file(self, before: LogsAnswer | None, files: tuple[str, ...]) -> LogsAnswer:
        if self.source not in files:  # so a name cannot lead out of the folder
            return LogsAnswer(Listing(()), files)
        end = tail(self.home.logs / self.source, before.tail if before else None)
        if before is not None and end is before.tail:
            return LogsAnswer(before.listing, files, tail=end)
        lines = {line.id: line for line in end.lines if fits(line, self.wanted)}
        return LogsAnswer(Listing.of(lines), files, tail=end)


def _listing(ids: array[int]) -> Listing[LogLine]:
    return Listing(ids, _read)


def _read(reader: HomeReader, ids: Sequence[int]) -> Mapping[int, LogLine]:
    return {
        row.id: LogLine(row.id, row.level, row.message, row.created, row.task, row.kind)
        for row in reader.event_rows(ids).values()
    }
