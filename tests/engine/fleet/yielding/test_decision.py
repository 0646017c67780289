"""Whose word counts when several have a reason to rest, and how a rest reads."""

from __future__ import annotations

from datetime import datetime

import pytest

from marlaas.engine.fleet.yielding.decision import clock, reason, state, yield_at
from marlaas.engine.home.active_hours import ActiveHours
from marlaas.engine.store.rows import HOURS, IDLE, YIELDED, Rest, YieldRequest

NOW = datetime(2026, 11, 2, 12, 0).timestamp()
LATER = datetime(2026, 11, 2, 14, 5).timestamp()
NIGHT, DAY, ALWAYS = ActiveHours.parse("22:00-07:00"), ActiveHours.parse("09:00-18:00"), ActiveHours()
TEN = datetime(2026, 11, 2, 22, 0).timestamp()


@pytest.mark.parametrize(
    ("yielded", "hours", "idle", "rest"),
    [
        (None, ALWAYS, False, None),
        (None, DAY, False, None),
        (None, DAY, True, Rest(IDLE)),
        (None, NIGHT, True, Rest(HOURS, TEN)),
        (YieldRequest(None), NIGHT, True, Rest(YIELDED)),
        (YieldRequest(LATER), DAY, False, Rest(YIELDED, LATER)),
        (YieldRequest(NOW), DAY, False, None),
        (YieldRequest(NOW - 1), NIGHT, False, Rest(HOURS, TEN)),
        (YieldRequest(NOW - 1), ALWAYS, True, Rest(IDLE)),
    ],
)
def test_the_strongest_reason_counts(
    yielded: YieldRequest | None, hours: ActiveHours, idle: bool, rest: Rest | None
) -> None:
    assert yield_at(NOW, yielded, hours, idle) == rest
    assert rest is None or rest.holds is (rest.kind != IDLE)


@pytest.mark.parametrize(
    ("rest", "shown", "waits"),
    [
        (Rest(YIELDED), "yielded", "the engine has yielded the machine; `marlaas engine resume` takes it back"),
        (
            Rest(YIELDED, LATER),
            "yielded until 14:05",
            "the engine has yielded the machine until 14:05; `marlaas engine resume` takes it back",
        ),
        (Rest(HOURS, TEN), "off duty until 22:00", "it is outside of the active hours; goes on at 22:00"),
        (Rest(HOURS), "off duty", "it is outside of the active hours"),
        (Rest(IDLE), "idle", ""),
    ],
)
def test_a_rest_says_what_it_is_and_when_it_ends(rest: Rest, shown: str, waits: str) -> None:
    assert state(rest, NOW) == shown
    assert not rest.holds or reason(rest, NOW) == waits


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
