"""The line over a simulated device: the order of tenants, priorities, tasks and arrivals; what cancelling leaves."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.fairness.line import FairClock, Line, Payer, Standing

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


def test_a_cost_that_will_never_be_known_is_what_was_expected() -> None:
    line = line_of((ANN, "a"))
    served(line)
    line.end(line.begin(ANN), None)
    assert line.clock.counter("ann") == 20


def test_nothing_waits_in_an_empty_line() -> None:
    line: Line[str] = Line()
    with pytest.raises(LookupError):
        line.take()
    line.discard(ANN, "gone")
    assert not line


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
    for number in range(100, 1500):
        payer, _ = line.take()
        price = its if payer is small else cost
        line.end(line.begin(payer), price)
        had[payer.tenant] += price
        line.add(payer, number)
    assert had["small"] / had.total() == pytest.approx(0.5, rel=0.05)


def test_a_policy_that_is_asked_little_goes_next() -> None:
    """The queue of one policy runs ahead, a second wants one thing now and then: it goes next each time."""
    line: Line[str] = Line()
    writer, judge, other = Payer("lab", 1, policy="w"), Payer("lab", 1, policy="j"), Payer("lab", 2)
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
    for number in range(200):
        line.add(other, f"o{number}")
        line.add(judge, f"more{number}")
    had: Counter[Payer] = Counter()
    for _ in range(160):
        payer, _ = line.take()
        line.end(line.begin(payer), 10)
        had[payer] += 1
    assert had[other] == pytest.approx(80, abs=10), "tasks have even shares, however many policies they have"
    assert had[judge] == pytest.approx(had[writer], abs=10)


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


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["ann", "bob", "cid"]), st.booleans()), max_size=60))
def test_lines_with_one_clock_serve_all_that_waits_in_each(events: list[tuple[int, str, bool]]) -> None:
    clock: FairClock[str] = FairClock()
    lines = [Line[int](clock=clock) for _ in range(3)]
    waiting: list[list[int]] = [[], [], []]
    for number, (place, tenant, taken) in enumerate(events):
        if taken and waiting[place]:
            payer, item = lines[place].take()
            waiting[place].remove(item)
            lines[place].end(lines[place].begin(payer), 1 + number)
        else:
            lines[place].add(Payer(tenant, 1), number)
            waiting[place].append(number)
        assert [len(line) for line in lines] == list(map(len, waiting))
    for place, line in enumerate(lines):
        while line:
            waiting[place].remove(line.take()[1])
    assert waiting == [[], [], []] and clock.standings() == {}
