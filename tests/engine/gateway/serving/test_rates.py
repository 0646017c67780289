"""Requests a minute: how many get through, and when the next one may."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.gateway.serving.clients import MINUTE, Limits
from marlaas.engine.wire import Refusal

from .clientele import Clientele


class Rates:
    """Requests that end at once, on a clock that a test moves."""

    def __init__(self, clientele: Clientele, per_minute: int) -> None:
        self.now = 1000.0
        self._limits = Limits(clientele.store, per_minute, clock=lambda: self.now)

    def wait(self, key: int) -> float:
        """Seconds until the next one may; 0: this one gets through."""
        try:
            with self._limits.admitted(key, "lab"):
                return 0.0
        except Refusal as refusal:
            assert (refusal.status, refusal.code) == (429, "rate_limit") and refusal.retry_after
            return refusal.retry_after


def test_a_minutes_worth_at_once_and_then_one_after_the_other(clientele: Clientele) -> None:
    rates = Rates(clientele, 6)
    assert [rates.wait(1) for _ in range(6)] == [0.0] * 6
    assert [rates.wait(1) for _ in range(2)] == pytest.approx([10, 10]), "one that is refused costs nothing"
    assert not rates.wait(2), "another key has its own"
    rates.now += 10
    assert not rates.wait(1) and rates.wait(1) == pytest.approx(10)
    rates.now += 1000
    assert [rates.wait(1) for _ in range(7)][:6] == [0.0] * 6


def test_no_limit_counts_nothing(clientele: Clientele) -> None:
    rates = Rates(clientele, 0)
    assert not any(rates.wait(1) for _ in range(100))


@given(st.integers(1, 50), st.lists(st.floats(0, 90), max_size=80))
def test_never_more_than_two_minutes_worth_in_a_minute(clientele: Clientele, most: int, pauses: list[float]) -> None:
    """A full bucket, and what runs off meanwhile; and whoever waits as long as told gets through."""
    rates = Rates(clientele, most)
    passed: list[float] = []
    for pause in pauses:
        rates.now += pause
        if left := rates.wait(1):
            assert left <= MINUTE / most + 1e-6
            rates.now += left + 1e-6
            assert not rates.wait(1)
        passed.append(rates.now)
        assert sum(moment > rates.now - MINUTE for moment in passed) <= 2 * most
