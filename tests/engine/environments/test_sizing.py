"""How many processes a version gets: within its bounds, as many as its work asks for, and steadily so."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.environments.pool import BUSY, LATE, PER_CORE, REST, Account, Work, wanted
from marlaas.engine.environments.process.launch import Load, Workers

EPISODES = 64
loads = st.builds(Load, late=st.floats(0, 100), busy=st.floats(0, 4))
accounts = st.builds(Account, pressed=st.floats(0, 1000), slack=st.floats(0, 1000))
bounds = st.tuples(st.integers(1, 8), st.integers(0, 60)).map(lambda pair: Workers(pair[0], pair[0] + pair[1]))


@st.composite
def works(draw: st.DrawFn) -> Work:
    """What some processes do."""
    count = draw(st.integers(1, 12))
    live = draw(st.lists(st.integers(0, EPISODES), min_size=count, max_size=count))
    return Work(tuple(live), tuple(draw(loads) for _ in live), draw(st.integers(0, 100)))


def alike(count: int, each: int, load: Load, waiting: int = 0) -> Work:
    return Work((each,) * count, (load,) * count, waiting)


@given(account=accounts, work=works(), workers=bounds, price=st.floats(0, 60), spare=st.integers(0, 64))
def test_bounds_hold(account: Account, work: Work, workers: Workers, price: float, spare: int) -> None:
    now, target = len(work.live), wanted(account, work, workers, EPISODES, price, spare)
    assert target >= min(now, workers.least)
    if target > now:
        assert target <= max(workers.least, min(workers.most, now + spare, 2 * now))
        assert target == workers.least or target <= sum(work.live) + work.waiting, "none would be without an episode"
    assert target >= workers.least or now < workers.least


@given(work=works(), workers=bounds, price=st.floats(0, 60))
def test_nothing_grows_before_it_is_worth_its_price(work: Work, workers: Workers, price: float) -> None:
    now = len(work.live)
    early = Account(pressed=max(1.0, price) - 0.01)
    assert wanted(early, work, workers, EPISODES, price, 64) <= max(now, workers.least)


@given(work=works(), account=accounts, seconds=st.floats(0.1, 10))
def test_what_presses_is_not_slack_as_well(work: Work, account: Account, seconds: float) -> None:
    after = account.after(work, seconds, EPISODES)
    assert after.pressed >= 0 and after.slack >= 0
    if not work.waiting and after.pressed > account.pressed:
        assert after.slack == 0 or min(load.late for load in work.loads) < LATE


@pytest.mark.parametrize(
    ("work", "pressed"),
    [
        (alike(1, 64, Load(3.2, 1.0)), True),  # a grader that computes
        (alike(1, 64, Load(2.0, 0.0)), True),  # a grader that sleeps without an await
        (alike(1, 64, Load(0.01, 0.3)), False),  # an environment that mostly waits for the model
        (alike(1, 1, Load(60.0, 1.0)), False),  # a second process would have nothing to play
        (alike(1, 64, Load(0.0, 0.1), waiting=1), True),  # no place
        (Work((64, 0), (Load(3.2, 1.0), Load())), False),  # the second has only just been started
        (alike(4, 16, Load(0.0, BUSY)), True),
    ],
)
def test_what_asks_for_another_process(work: Work, pressed: bool) -> None:
    assert work.pressed is pressed


@pytest.mark.parametrize(
    ("work", "weight"),
    [
        (alike(2, 64, Load(3.2, 1.0)), 1.0),
        (alike(2, 64, Load(2.0, 0.0, 1.0)), 1 / PER_CORE),  # a request to a model elsewhere, without an await
        (alike(2, 64, Load(2.0, 0.25, 0.75)), 0.25),
        (alike(2, 64, Load(2.0, 0.1, 0.0)), None),  # it waited for a core
        (alike(1, 64, Load()), None),
    ],
)
def test_what_waits_needs_a_part_of_a_core(work: Work, weight: float | None) -> None:
    assert work.weight == weight


def test_processes_that_wait_are_not_idle() -> None:
    assert alike(4, 16, Load(0.1, 0.0, 0.5)).needed(EPISODES) == 4
    assert alike(4, 16, Load(0.1, 0.0, 0.1)).needed(EPISODES) == 1


def test_more_than_can_compute_end_where_they_compute() -> None:
    work = alike(16, 8, Load(2.0, 0.125))
    account = Account().after(work, REST, EPISODES, most=2)
    assert wanted(account, work, Workers(1, 2), EPISODES, 1.0, 0) == 2
    assert Account().after(work, REST, EPISODES, most=16).slack == 0.0


def simulate(demand: list[float], workers: Workers, price: float, cores: int) -> list[int]:
    """Processes at each second for a demand in processor seconds per second, with 64 episodes under way if there is
    any."""
    account, count, counts = Account(), max(1, workers.least), []
    for need in demand:
        each = need / count
        work = alike(
            count, math.ceil(64 / count) if need else 0, Load(late=each if each > 1 else 0.0, busy=min(1.0, each))
        )
        account = account.after(work, 1.0, EPISODES)
        target = wanted(account, work, workers, EPISODES, price, max(0, cores - count))
        if target != count:
            account = Account()
        count = target
        counts.append(count)
    return counts


@given(need=st.floats(0, 20), price=st.floats(0, 30), cores=st.integers(1, 16), workers=bounds)
def test_a_steady_demand_finds_its_number_and_keeps_it(need: float, price: float, cores: int, workers: Workers) -> None:
    counts = simulate([need] * 600, workers, price, cores)
    assert len(set(counts[-200:])) == 1, "no coming and going"
    most = max(workers.least, min(workers.most, cores))
    assert workers.least <= counts[-1] <= max(most, workers.least)
    if need >= most:
        assert counts[-1] == most
    assert sum(a != b for a, b in itertools.pairwise(counts)) <= 8


@given(workers=bounds, cores=st.integers(1, 16))
def test_what_is_not_used_ends(workers: Workers, cores: int) -> None:
    counts = simulate([16.0] * 120 + [0.0] * int(REST + 5), workers, 1.0, cores)
    assert counts[-1] == workers.least


def test_a_short_burst_starts_nothing_that_is_dear_to_start() -> None:
    workers = Workers(1, 8)
    assert set(simulate([4.0] * 5 + [0.1] * 60, workers, 10.0, 8)) == {1}
    assert max(simulate([4.0] * 30, workers, 10.0, 8)) > 1
