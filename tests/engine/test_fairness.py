"""Fair shares: the line of tenants and tasks, the clock behind it, and the ledger of what was used."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.fairness.line import (
    ROLLOUT,
    ROOM,
    TRAINING,
    FairClock,
    Ledger,
    Line,
    Payer,
    Standing,
    Usage,
    rollout_cost,
)

ANN, BOB = Payer("ann", 1), Payer("bob", 2)


def served(line: Line[str]) -> str:
    """Serve what is next, at a cost of 10."""
    payer, item = line.take()
    line.end(line.begin(payer), 10)
    return item


def all_served(line: Line[str]) -> list[str]:
    return [served(line) for _ in range(len(line))]


def line_of(*items: tuple[Payer, str]) -> Line[str]:
    line: Line[str] = Line()
    for payer, item in items:
        line.add(payer, item)
    return line


def test_tenants_take_turns_however_much_one_of_them_wants() -> None:
    line = line_of(*((ANN, f"a{n}") for n in range(4)), (BOB, "b0"), (BOB, "b1"))
    assert all_served(line) == ["a0", "b0", "a1", "b1", "a2", "a3"]


def test_a_tenants_tasks_have_even_shares() -> None:
    other = Payer("ann", 7)
    line = line_of(
        *((ANN, f"a{n}") for n in range(3)), *((other, f"o{n}") for n in range(3)), *((BOB, f"b{n}") for n in range(6))
    )
    order = all_served(line)
    assert order[:8] == ["a0", "b0", "o0", "b1", "a1", "b2", "o1", "b3"]


def test_priority_moves_a_tenants_own_tasks_only() -> None:
    line = line_of((ANN, "a"), (Payer("ann", 3, priority=9), "first"), (BOB, "b"))
    assert all_served(line) == ["first", "b", "a"]


def test_what_is_urgent_to_one_tenant_delays_no_other() -> None:
    line = line_of((Payer("ann", 3, priority=9), "a"), (BOB, "b0"), (BOB, "b1"))
    line.add(ANN, "urgent", urgent=True)
    assert all_served(line) == ["urgent", "b0", "a", "b1"]


def test_a_weight_that_changes_counts_at_once() -> None:
    weights = {"ann": 1.0, "bob": 1.0}
    line: Line[str] = Line(weights.__getitem__)
    for n in range(100):
        line.add(ANN, f"a{n}")
        line.add(BOB, f"b{n}")
    assert Counter(served(line)[0] for _ in range(40)) == {"a": 20, "b": 20}
    weights["bob"] = 3.0
    assert Counter(served(line)[0] for _ in range(40)) == {"a": 10, "b": 30}


def test_what_is_being_served_counts_before_its_cost_is_known() -> None:
    line = line_of((ANN, "a"), (BOB, "b"))
    all_served(line)  # from now on, each is expected to cost 10
    for n in range(3):
        line.add(ANN, f"a{n}")
        line.add(BOB, f"b{n}")
    reservations, order = [], []
    while line:
        payer, item = line.take()
        reservations.append(line.begin(payer))
        order.append(item)
    assert order == ["a0", "b0", "a1", "b1", "a2", "b2"]
    for reservation in reservations:
        line.withdraw(reservation)
    assert line.clock.counter("ann") == line.clock.counter("bob") == 10


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 5), st.integers(0, 2)),
        st.tuples(st.just("cancel"), st.integers(0, 50), st.just(0)),
        st.tuples(st.just("serve"), st.integers(1, 30), st.just(0)),
    ),
    max_size=120,
)


@given(EVENTS)
def test_everything_is_served_once_or_cancelled(events: list[tuple[str, int, int]]) -> None:
    """Tasks 0 to 5 belong to three tenants and have two policies each; within a policy and a priority the order is that
    of arrival."""
    line: Line[int] = Line()
    waiting: dict[int, Payer] = {}
    for number, (event, value, priority) in enumerate(events):
        if event == "add":
            payer = Payer(f"tenant {value % 3}", value, priority, f"policy {number % 2}")
            waiting[number] = payer
            line.add(payer, number)
        elif event == "cancel" and waiting:
            item = list(waiting)[value % len(waiting)]
            line.discard(waiting.pop(item), item)
        elif event == "serve" and waiting:
            assert line.peek() in waiting
            payer, item = line.take()
            assert waiting.pop(item) == payer
            assert item == min([item, *(other for other, its in waiting.items() if its == payer)])
            assert not any(its.tenant == payer.tenant and its.priority > payer.priority for its in waiting.values())
            line.end(line.begin(payer), value)
        assert len(line) == len(waiting)
    assert {line.take()[1] for _ in range(len(line))} == waiting.keys()
    for value in range(6):  # an empty place that was left behind would come before these, and fail
        payer = Payer(f"tenant {value % 3}", value, -1)
        line.add(payer, value)
        assert line.take() == (payer, value)


@given(st.integers(1, 8), st.integers(1, 60), st.integers(1, 60))
def test_a_small_tenant_beside_a_large_one_has_half(tasks: int, cost: int, its: int) -> None:
    """One tenant with 1 to 8 tasks that always want more, one with a single task that always wants one thing more."""
    line: Line[int] = Line()
    large, small = [Payer("large", task) for task in range(tasks)], Payer("small", 99)
    had: Counter[str] = Counter()
    for payer in [*large, *large, *large, small]:
        line.add(payer, len(line))
    for number in range(100, 800):
        payer, _ = line.take()
        price = its if payer is small else cost
        line.end(line.begin(payer), price)
        had[payer.tenant] += price
        line.add(payer, number)
    assert had["small"] / had.total() == pytest.approx(0.5, rel=0.05)


def test_a_policy_that_is_asked_little_goes_next() -> None:
    """The queue of one policy runs ahead, a second wants one thing now and then: it goes next each time."""
    line: Line[str] = Line()
    writer, judge = Payer("lab", 1, policy="w"), Payer("lab", 1, policy="j")
    for number in range(200):
        line.add(writer, f"w{number}")
    served = [line.begin(line.take()[0]) for _ in range(8)]
    for turn in range(100):
        line.end(served.pop(0), 10)
        if turn % 10 == 9:
            line.add(judge, f"j{turn}")
        payer, item = line.take()
        assert item == f"j{turn}" if turn % 10 == 9 else payer == writer
        served.append(line.begin(payer))


def test_standings_say_who_waits_and_who_is_behind() -> None:
    line = Line[str](weight={"ann": 2.0, "bob": 1.0}.__getitem__)
    assert line.standings() == []
    for item in ("a1", "a2"):
        line.add(ANN, item)
    line.add(BOB, "b1")
    assert served(line) == "a1"  # at a cost of 10 and a weight of 2
    assert line.standings() == [Standing("ann", 1, 0.0), Standing("bob", 1, 5.0)]
    payer, _ = line.take()
    reservation = line.begin(payer)
    assert payer == BOB and {one.tenant: one.waiting for one in line.standings()} == {"ann": 1, "bob": 0}
    line.end(reservation, 10)
    assert line.standings() == [Standing("ann", 1, 0.0)]  # who wants nothing stands nowhere


@pytest.mark.parametrize(("shared", "share"), [(True, 0.5), (False, 0.25)])
def test_lines_with_one_clock_share_all_devices(shared: bool, share: float) -> None:
    """Ann's work can be done on the first of two devices alone, Bob's on both."""
    clocks: list[FairClock[str]] = [FairClock()] * 2 if shared else [FairClock(), FairClock()]
    first, second = (Line[str](clock=clock) for clock in clocks)
    served: Counter[str] = Counter()
    for number in range(400):
        first.add(ANN, f"ann {number}")
        for line in (first, second):
            line.add(BOB, f"bob {number} {line is first}")
    for _ in range(400):
        for line in (first, second):
            payer, _ = line.take()
            line.end(line.begin(payer), 10)
            served[payer.tenant] += 10
    assert served["ann"] / 8000 == pytest.approx(share, abs=0.02)


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
    assert len(clock._accounts) <= 2 * ROOM
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


def test_what_could_not_be_written_waits_for_the_next_time() -> None:
    ledger = Ledger()
    ledger.training(1, 100, 0.5)
    taken = ledger.take()
    ledger.training(1, 1, 0.5)
    ledger.put_back(taken)
    assert ledger.take() == [Usage(1, TRAINING, 101, 1.0)]
    assert ledger.busy[TRAINING] == 1.0


def test_seconds_of_the_rollout_worker_go_by_what_tokens_cost() -> None:
    ledger = Ledger()
    ledger.rollout(1, prefilled=20, sampled=10)
    ledger.rollout(2, prefilled=0, sampled=30)
    ledger.rollout_seconds(1.0)
    first, second = ledger.take()
    assert (first.task, first.stage, first.tokens) == (1, ROLLOUT, 30)
    assert (second.task, second.stage, second.tokens) == (2, ROLLOUT, 30)
    assert first.seconds / second.seconds == pytest.approx(rollout_cost(20, 10) / rollout_cost(0, 30))
    assert first.seconds + second.seconds == pytest.approx(1.0)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 50), st.integers(1, 50), st.booleans())))
def test_all_seconds_are_somebodys(turns: list[tuple[int, int, int, bool]]) -> None:
    ledger = Ledger()
    seconds = 0.0
    for task, prefilled, sampled, beat in turns:
        ledger.rollout(task, prefilled, sampled)
        if beat:
            ledger.rollout_seconds(1.0)
            seconds = ledger.busy[ROLLOUT]
    usages = ledger.take()
    assert sum(usage.seconds for usage in usages) == pytest.approx(seconds)
    assert sum(usage.tokens for usage in usages) == sum(turn[1] + turn[2] for turn in turns)
