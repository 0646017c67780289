"""What tokens cost is learnt from totals: the scale at once, the proportion as soon as mixes differ."""

from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.devices.machine import Rates
from marlaas.engine.machine.routing.assignment import CostMeter, TokenCosts, guessed

GUESS = TokenCosts("rollout", 1e-4, 3e-4)
seconds = st.floats(1e-6, 1e-2)


def fed(windows: Sequence[tuple[float, float]], prefilled: float, sampled: float, meter: CostMeter) -> CostMeter:
    """After windows of so many tokens of both kinds at a sampler with these costs."""
    totals = [0.0, 0.0, 0.0]
    for read, written in windows:
        totals = [totals[0] + read, totals[1] + written, totals[2] + read * prefilled + written * sampled]
        meter = meter.seen(*totals)
    return meter


def test_nothing_seen_leaves_the_guess() -> None:
    assert CostMeter(GUESS).costs == GUESS
    assert CostMeter(GUESS).seen(0, 0, 0).costs == GUESS


@given(seconds, seconds)
def test_alike_windows_cost_what_they_took(prefilled: float, sampled: float) -> None:
    """However it is divided between both kinds."""
    costs = fed([(1000, 200)] * 5, prefilled, sampled, CostMeter(GUESS)).costs
    took = 1000 * prefilled + 200 * sampled
    assert 1000 * costs.prefilled + 200 * costs.sampled == pytest.approx(took, rel=0.05)


@given(st.floats(1e-5, 1e-4), st.floats(0.5, 20.0))
def test_different_mixes_tell_the_two_kinds_apart(prefilled: float, proportion: float) -> None:
    """In windows of up to some seconds, of which no single one makes those before forgotten."""
    windows = [(5000, 50), (100, 1500)] * 20
    costs = fed(windows, prefilled, proportion * prefilled, CostMeter(GUESS)).costs
    assert costs.sampled / costs.prefilled == pytest.approx(proportion, rel=0.25)


def test_a_fresh_worker_begins_at_nothing() -> None:
    meter = fed([(1000, 1000)] * 3, 1e-4, 1e-3, CostMeter(GUESS))
    again = meter.seen(1000, 1000, 1.1)
    assert again.costs.sampled == pytest.approx(meter.costs.sampled, rel=0.01)


def test_what_was_long_ago_is_forgotten() -> None:
    meter = fed([(1000, 1000)] * 100, 1e-3, 1e-3, CostMeter(GUESS))
    now = [*meter.totals]
    for _ in range(2000):
        now = [now[0] + 1000, now[1] + 1000, now[2] + 0.4]
        meter = meter.seen(*now)
    assert 1000 * (meter.costs.prefilled + meter.costs.sampled) == pytest.approx(0.4, rel=0.05)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 100)), max_size=20))
def test_costs_are_always_above_nothing(windows: list[tuple[float, float, float]]) -> None:
    meter = CostMeter(GUESS)
    for window in windows:
        meter = meter.seen(*window)
    assert meter.costs.prefilled > 0
    assert meter.costs.sampled > 0


def test_a_guess_knows_what_a_card_is_good_at() -> None:
    reader = guessed("reader", 1_500_000_000, 3_000_000_000, Rates(matrix=800e12, bandwidth=1e12))
    writer = guessed("writer", 1_500_000_000, 3_000_000_000, Rates(matrix=150e12, bandwidth=4e12))
    assert reader.prefilled < writer.prefilled
    assert reader.sampled > writer.sampled
    unknown = guessed("unknown", 1, 1, None)
    assert unknown.sampled > unknown.prefilled > 0
