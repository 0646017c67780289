"""Active hours in which the engine may work, from a setting such as "22:00-07:00, sat-sun 09:00-22:00".

Pure, except for the machine's time zone. A range belongs to the day of its begin and may end on the next. If the clock
is put back, the first of two equal readings counts; if it is put forward, a skipped reading means the moment of the
change.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from ..errors import ConfigError

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY = 24 * 60
LOOK = 9
"""Days ahead that are searched for a change: a week, and ranges that reach over its ends."""
FORM = 'Write them like "22:00-07:00", "mon-fri 20:00-08:00, sat-sun 00:00-24:00", or "" for always.'
_RANGE = re.compile(r"(?:([a-z]{3})(?:-([a-z]{3}))? +)?(\d{1,2}):(\d{2}) *- *(\d{1,2}):(\d{2})")


@dataclass(frozen=True)
class Range:
    """A range from one clock time to another, on some days of the week."""

    days: frozenset[int]
    """Days of its begin; 0 is Monday."""
    begin: int
    """Minutes after midnight."""
    end: int
    """Minutes after the same midnight; later than ``begin`` by a day at most."""


@dataclass(frozen=True)
class ActiveHours:
    """The ranges in which the engine may work; without any, it always may."""

    ranges: tuple[Range, ...] = ()

    @classmethod
    def parse(cls, text: str) -> ActiveHours:
        parts = [part.strip() for part in text.lower().split(",")]
        return cls(tuple(_range(part) for part in parts)) if any(parts) else cls()

    def active(self, now: float) -> bool:
        return not self.ranges or any(begin <= now < end for begin, end in self._spans(now))

    def changes(self, now: float) -> float | None:
        """Time of the next change of ``active``, in seconds since 1970; None: never."""
        if not self.ranges:
            return None
        before = self.active(now)
        moments = sorted({moment for span in self._spans(now) for moment in span if moment > now})
        return next((moment for moment in moments if self.active(moment) is not before), None)

    def _spans(self, now: float) -> Iterator[tuple[float, float]]:
        today = datetime.fromtimestamp(now).date()
        for ahead in range(-2, LOOK):
            day = today + timedelta(days=ahead)
            for each in self.ranges:
                if day.weekday() in each.days:
                    yield _moment(day, each.begin), _moment(day, each.end)


def _range(text: str) -> Range:
    match = _RANGE.fullmatch(text)
    if match is None:
        raise ConfigError(f"{text!r} are no active hours.", FORM)
    first, last, *clock = match.groups()
    begin, end = (int(hour) * 60 + int(minute) for hour, minute in (clock[:2], clock[2:]))
    if max(int(clock[1]), int(clock[3])) > 59 or begin >= DAY or end > DAY or begin == end:
        raise ConfigError(f"{text!r} are no active hours: a day goes from 00:00 to 24:00.", FORM)
    return Range(_days(first, last, text), begin, end if end > begin else end + DAY)


def _days(first: str | None, last: str | None, text: str) -> frozenset[int]:
    if first is None:
        return frozenset(range(7))
    if first not in DAYS or (last or first) not in DAYS:
        raise ConfigError(f"{text!r} names no day; days are {', '.join(DAYS)}.", FORM)
    begin, end = DAYS.index(first), DAYS.index(last or first)
    return frozenset((begin + day) % 7 for day in range((end - begin) % 7 + 1))


def _moment(day: date, minutes: int) -> float:
    """First time that a wall clock shows ``minutes`` after the midnight at the beginning of ``day``."""
    reading = datetime.combine(day, datetime.min.time()) + timedelta(minutes=minutes)
    while datetime.fromtimestamp(reading.timestamp()) != reading:  # skipped: the clock is put forward over it
        reading += timedelta(minutes=1)
    return reading.timestamp()
