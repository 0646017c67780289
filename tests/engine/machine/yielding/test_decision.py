"""Whose word counts when several have a reason to yield, and how that reads."""

from __future__ import annotations

from datetime import datetime

import pytest

from marlaas.engine.home.settings import ActiveHours
from marlaas.engine.machine.yielding.decision import clock, reason, state, yield_at
from marlaas.engine.store.rows import HOURS, IDLE, YIELDED, Yielding, YieldRequest

NOW = datetime(2026, 11, 2, 12, 0).timestamp()
LATER = datetime(2026, 11, 2, 14, 5).timestamp()
NIGHT, DAY, ALWAYS = ActiveHours.parse("22:00-07:00"), ActiveHours.parse("09:00-18:00"), ActiveHours()
TEN = datetime(2026, 11, 2, 22, 0).timestamp()


@pytest.mark.parametrize(
    ("yielded", "hours", "idle", "yielding"),
    [
        (None, ALWAYS, False, None),
        (None, DAY, False, None),
        (None, DAY, True, Yielding(IDLE)),
        (None, NIGHT, True, Yielding(HOURS, TEN)),
        (YieldRequest(None), NIGHT, True, Yielding(YIELDED)),
        (YieldRequest(LATER), DAY, False, Yielding(YIELDED, LATER)),
        (YieldRequest(NOW), DAY, False, None),
        (YieldRequest(NOW - 1), NIGHT, False, Yielding(HOURS, TEN)),
        (YieldRequest(NOW - 1), ALWAYS, True, Yielding(IDLE)),
    ],
)
def test_the_strongest_reason_counts(
    yielded: YieldRequest | None, hours: ActiveHours, idle: bool, yielding: Yielding | None
) -> None:
    assert yield_at(NOW, yielded, hours, idle) == yielding
    assert yielding is None or yielding.holds is (yielding.kind != IDLE)


@pytest.mark.parametrize(
    ("yielding", "shown", "waits"),
    [
        (Yielding(YIELDED), "yielded", "the engine has yielded the machine; `marlaas engine resume` takes it back"),
        (
            Yielding(YIELDED, LATER),
            "yielded until 14:05",
            "the engine has yielded the machine until 14:05; `marlaas engine resume` takes it back",
        ),
        (
            Yielding(HOURS, TEN),
            "outside of active hours until 22:00",
            "it is outside of the active hours; goes on at 22:00",
        ),
        (Yielding(HOURS), "outside of active hours", "it is outside of the active hours"),
        (Yielding(IDLE), "idle", ""),
    ],
)
def test_yielding_says_why_it_is_and_when_it_ends(yielding: Yielding, shown: str, waits: str) -> None:
    assert state(yielding, NOW) == shown
    assert not yielding.holds or reason(yielding, NOW) == waits


@pytest.mark.parametrize(
    ("month", "day", "shown"),
    [
        (11, 2, "14:05"),
        (11, 3, "Tue 14:05"),
        (11, 8, "Sun 14:05"),
        (11, 9, "2026-11-09 14:05"),
        (11, 1, "2026-11-01 14:05"),
    ],
)
def test_a_moment_names_its_day_where_that_is_another(month: int, day: int, shown: str) -> None:
    assert clock(datetime(2026, month, day, 14, 5).timestamp(), NOW) == shown
