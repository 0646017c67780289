"""The fair clock over a simulated device: shares follow weights, nobody starves, nobody saves up."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.fairness.line import ROOM, FairClock

COSTS = st.integers(1, 100)
WEIGHTS = st.floats(0.1, 10.0)


def serve(clock: FairClock[str], costs: dict[str, list[int]], rounds: int) -> Counter[str]:
    """Serve whoever is behind, one at a time; each key's costs come round and round. Returns what each has had."""
    had: Counter[str] = Counter()
    turns: Counter[str] = Counter()
    for _ in range(rounds):
        key = clock.behind()
        cost = costs[key][turns[key] % len(costs[key])]
        turns[key] += 1
        had[key] += cost
        clock.begin(key)
        clock.settle(key, cost=cost)
    return had


@given(st.lists(st.tuples(WEIGHTS, st.lists(COSTS, min_size=1, max_size=5)), min_size=2, max_size=6))
def test_backlogged_keys_never_differ_by_more_than_one_serving(keys: list[tuple[float, list[int]]]) -> None:
    clock: FairClock[str] = FairClock()
    costs = {str(number): its for number, (_, its) in enumerate(keys)}
    bound = max(max(its) / weight for weight, its in keys)
    for number, (weight, _) in enumerate(keys):
        clock.weigh(str(number), weight)
        clock.join(str(number))
    for _ in range(200):
        serve(clock, costs, 1)
        counters = [clock.counter(key) for key in costs]
        assert max(counters) - min(counters) <= bound * (1 + 1e-9)


@given(WEIGHTS, WEIGHTS, st.lists(COSTS, min_size=1, max_size=5), st.lists(COSTS, min_size=1, max_size=5))
def test_shares_follow_weights_whatever_each_serving_costs(
    one: float, other: float, its: list[int], others: list[int]
) -> None:
    clock: FairClock[str] = FairClock()
    for key, weight in (("one", one), ("other", other)):
        clock.weigh(key, weight)
        clock.join(key)
    had = serve(clock, {"one": its, "other": others}, 1000)
    assert abs(had["one"] / one - had["other"] / other) <= max(max(its) / one, max(others) / other) * (1 + 1e-9)


@given(st.lists(st.sampled_from("abcd"), max_size=100), COSTS)
def test_whoever_comes_back_has_no_credit_and_no_debt(visits: list[str], cost: int) -> None:
    """A key that was away has neither credit nor debts among those that waited meanwhile."""
    clock: FairClock[str] = FairClock()
    clock.join("busy")
    serve(clock, {"busy": [cost]}, 100)
    for key in visits:
        clock.join(key)
        had = serve(clock, {"busy": [cost], key: [cost]}, 4)
        assert cost <= had[key] <= 3 * cost
        clock.leave(key)


@given(st.lists(COSTS, min_size=1, max_size=5), st.lists(COSTS, min_size=1, max_size=5), WEIGHTS)
def test_a_key_that_wants_one_thing_at_a_time_has_its_share(its: list[int], others: list[int], weight: float) -> None:
    """It waits anew for each thing, just after the one before has been served."""
    clock: FairClock[str] = FairClock()
    clock.weigh("one", weight)
    clock.join("all")
    clock.join("one")
    had: Counter[str] = Counter()
    for number in range(1000):
        key = clock.behind()
        costs = its if key == "one" else others
        cost = costs[number % len(costs)]
        clock.begin(key)
        if key == "one":
            clock.leave(key)
        clock.settle(key, cost=cost)
        had[key] += cost
        if key == "one":
            clock.join(key)
    assert abs(had["one"] / weight - had["all"]) <= 2 * max(max(its) / weight, max(others))


def test_service_while_nobody_waited_is_no_credit() -> None:
    clock: FairClock[str] = FairClock()
    for _ in range(10):
        clock.begin("a")
        clock.settle("a", cost=100)
    clock.join("b")
    assert clock.counter("b") == 900  # where a's last serving began


def test_service_out_of_turn_takes_nothing_from_others() -> None:
    clock: FairClock[str] = FairClock()
    clock.join("a")
    clock.begin("b")
    clock.settle("b", cost=1000)
    clock.begin("b")
    clock.leave("a")
    clock.join("a")
    assert clock.counter("a") == 0


def test_a_key_that_is_ahead_stays_ahead_when_it_comes_back() -> None:
    clock: FairClock[str] = FairClock()
    clock.settle("a", cost=100)
    clock.join("b")
    clock.join("a")
    assert clock.counter("a") == 100 and clock.behind() == "b"


def test_a_weight_counts_from_the_next_charge_on() -> None:
    clock: FairClock[str] = FairClock()
    clock.settle("a", cost=30)
    clock.weigh("a", 3)
    clock.settle("a", cost=30)
    assert clock.counter("a") == 40


@pytest.mark.parametrize("weight", [0.0, -1.0, float("inf"), float("nan")])
def test_an_impossible_weight_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="must be a number above 0"):
        FairClock[str]().weigh("a", weight)


def test_what_is_being_given_counts_already() -> None:
    clock: FairClock[str] = FairClock()
    clock.join("a")
    clock.join("b")
    given_to = []
    for _ in range(4):
        key = clock.behind()
        clock.begin(key, 10)
        given_to.append(key)
    assert given_to == ["a", "b", "a", "b"]


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000), WEIGHTS), max_size=50))
def test_counters_hold_what_was_charged_and_nothing_else(events: list[tuple[int, int, float]]) -> None:
    """Reservations come and go without a trace, whatever becomes of the weight meanwhile."""
    clock: FairClock[str] = FairClock()
    expected = 0.0
    for reserved, cost, weight in events:
        clock.begin("a", reserved)
        clock.weigh("a", weight)
        clock.settle("a", cost=cost)
        clock.settle("a", reserved)
        expected += cost / weight
        assert clock.counter("a") == expected >= 0


def test_keys_that_never_come_back_are_forgotten() -> None:
    clock: FairClock[int] = FairClock()
    clock.begin(0, 5)
    clock.join(-1)
    for key in range(1, 10_000):
        clock.join(key)
        clock.begin(key)
        clock.leave(key)
        clock.settle(key, cost=10)
        clock.begin(-1)
        clock.settle(-1, cost=10)
    assert clock.known <= 2 * ROOM
    assert 0 in clock.standings()  # it is still being served
    clock.settle(0, 5)
    assert 0 not in clock.standings()


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 3), COSTS), max_size=200))
def test_forgetting_changes_nothing(events: list[tuple[int, int, int]]) -> None:
    """A clock that forgets at every chance, beside one that never does."""
    clocks: list[FairClock[int]] = [FairClock(), FairClock()]
    waiting: set[int] = set()
    for key, event, cost in events:
        served = []
        if event == 0 and key in waiting:
            continue
        if event < 2:
            waiting = waiting | {key} if event == 0 else waiting - {key}
        for clock in clocks:
            if clock is clocks[0]:
                clock.forget()
            if event == 0:
                clock.join(key)
            elif event == 1:
                clock.leave(key)
            elif waiting:
                served.append(clock.behind() if event == 2 else key)
                clock.begin(served[-1])
                clock.settle(served[-1], cost=cost)
        assert len(set(served)) <= 1
        assert [clocks[0].counter(one) for one in waiting] == [clocks[1].counter(one) for one in waiting]


def test_the_choice_may_be_among_some() -> None:
    clock: FairClock[str] = FairClock()
    for number, key in enumerate("abc"):
        clock.settle(key, cost=number)
    assert clock.behind("cb") == "b"
    with pytest.raises(ValueError):
        clock.behind(())
