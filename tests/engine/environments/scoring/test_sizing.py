"""How many scoring workers are worth their start."""

from __future__ import annotations

from hypothesis import given, strategies as st

from marlaas.engine.environments.budget import PER_CORE
from marlaas.engine.environments.process.wire import Spent
from marlaas.engine.environments.scoring.pool import Requests, Waiting, wanted


def test_the_first_needs_no_reason() -> None:
    assert wanted(0, Waiting(), 5.0, 8) == 0
    assert wanted(0, Waiting(1, 0.0), 5.0, 0) == 1


def test_work_that_is_done_sooner_than_a_start_waits() -> None:
    assert wanted(1, Waiting(10, 0.2), 0.3, 8) == 1
    assert wanted(2, Waiting(10, 0.5), 0.3, 8) == 2


def test_slow_work_gets_as_many_as_it_is_worth() -> None:
    assert wanted(1, Waiting(64, 64 * 2.0), 0.3, 7) == 8
    assert wanted(1, Waiting(64, 0.8), 0.2, 63) == 4, "with four it takes as long as they took to start"
    assert wanted(1, Waiting(1, 2.0), 0.3, 7) == 2, "no more than there are requests"
    assert wanted(1, Waiting(64, 64 * 2.0), 6.0, 63) == 22, "an import of 6 s is worth it less often"


@given(st.integers(0, 20), st.integers(0, 300), st.floats(0, 1e3), st.floats(0.01, 30), st.integers(0, 64))
def test_they_stay_within_their_bounds(now: int, requests: int, seconds: float, price: float, spare: int) -> None:
    found = wanted(now, Waiting(requests, seconds), price, spare)
    assert now <= found <= now + max(spare, not now) and found <= now + requests


def test_who_waits_for_others_may_have_more_workers_than_cores() -> None:
    assert Requests().weight == 1.0 and Requests().seconds is None
    assert Requests().after(0.2, Spent(0.0, 0.2)).weight == 1.0, "too little is known"
    assert Requests().after(2.0, Spent(2.0, 0.0)).weight == 1.0
    assert Requests().after(2.0, Spent(0.5, 1.5)).weight == 0.25
    assert Requests().after(2.0, Spent(0.01, 1.99)).weight == 1 / PER_CORE
    assert Requests().after(8.0, Spent(2.0, 0.0)).weight == 1.0, "it, or the engine, only waited for a core"


def test_the_newest_requests_count_most() -> None:
    requests = Requests()
    for wall in [4.0] * 50 + [1.0] * 50:
        requests = requests.after(wall, Spent(wall, 0.0))
    assert requests.seconds is not None and abs(requests.seconds - 1.0) < 0.05
