"""A task that is blocked for long is told of once, until it has moved."""

from __future__ import annotations

from hypothesis import given, strategies as st

from marlaas.engine.queue.scheduler.decision import Stalls


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_told_once_until_it_moves() -> None:
    clock = Clock()
    stalls = Stalls(60, clock)
    heard = []
    for clock.now in range(0, 300, 20):
        if clock.now == 140:
            stalls.moved(1)
        if stalls.blocked(1):
            heard.append(clock.now)
    assert heard == [60, 200]


def test_who_does_not_wait_is_forgotten() -> None:
    clock = Clock()
    stalls = Stalls(10, clock)
    assert not stalls.blocked(1) and not stalls.blocked(2)
    stalls.only({2})
    clock.now = 10
    assert not stalls.blocked(1) and stalls.blocked(2)


@given(st.lists(st.tuples(st.integers(1, 3), st.floats(0, 50), st.booleans()), max_size=40), st.floats(0, 100))
def test_never_twice_for_one_stay(events: list[tuple[int, float, bool]], patience: float) -> None:
    clock = Clock()
    stalls, told = Stalls(patience, clock), set()
    for task, passed, moved in events:
        clock.now += passed
        if moved:
            stalls.moved(task)
            told.discard(task)
        elif stalls.blocked(task):
            assert task not in told
            told.add(task)
