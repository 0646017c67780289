"""Requests a minute: how many get through, and when the next one may."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.gateway.serving.clients import MINUTE, Rates


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_minutes_worth_at_once_and_then_one_after_the_other() -> None:
    clock = Clock()
    rates = Rates(6, clock)
    assert [rates.wait(1) for _ in range(6)] == [0.0] * 6
    assert [rates.wait(1) for _ in range(2)] == pytest.approx([10, 10]), "one that is refused costs nothing"
    assert not rates.wait(2), "another key has its own"
    clock.now += 10
    assert not rates.wait(1) and rates.wait(1) == pytest.approx(10)
    clock.now += 1000
    assert [rates.wait(1) for _ in range(7)][:6] == [0.0] * 6


def test_no_limit_counts_nothing() -> None:
    assert not any(Rates(0).wait(1) for _ in range(100))


@given(st.integers(1, 50), st.lists(st.floats(0, 90), max_size=80))
def test_never_more_than_two_minutes_worth_in_a_minute(most: int, pauses: list[float]) -> None:
    """A full bucket, and what runs off meanwhile; and whoever waits as long as told gets through."""
    clock = Clock()
    rates = Rates(most, clock)
    passed: list[float] = []
    for pause in pauses:
        clock.now += pause
        if left := rates.wait(1):
            assert left <= MINUTE / most + 1e-6
            clock.now += left + 1e-6
            assert not rates.wait(1)
        passed.append(clock.now)
        assert sum(one > clock.now - MINUTE for one in passed) <= 2 * most
