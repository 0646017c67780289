"""How far a clock is off, for certain, and when people are told."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from marlaas.engine.machine.cluster.node import LIMIT, clock_difference, clock_warning

from ....examples import examples

SECONDS = st.floats(0, 100)


@settings(max_examples=examples())
@given(st.floats(-1e4, 1e4), SECONDS, SECONDS)
def test_a_slow_network_accuses_nobody(ahead: float, there: float, back: float) -> None:
    """However the time of a call is divided between the way there and back, ``at_least`` is no more than the truth."""
    asked = 1_700_000_000.0
    measured, at_least = clock_difference(asked, asked + there + ahead, asked + there + back)
    assert at_least <= abs(ahead) + 1e-3
    assert abs(measured - ahead) <= (there + back) / 2 + 1e-3


def test_people_are_told_of_minutes() -> None:
    assert "The clock of ada is 5 minutes ahead of this machine's" in clock_warning("ada", 300.0)
    assert "3 hours behind" in clock_warning("ada", -10800.0)
    assert "40 seconds behind" in clock_warning("ada", -40.0)
    assert clock_warning("ada", LIMIT) == clock_warning("ada", 300.0, 5.0) == ""


@pytest.mark.parametrize("ahead", [-0.5, 0.0, 2.0])
def test_small_differences_are_nobodys_business(ahead: float) -> None:
    assert clock_warning("ada", ahead) == ""
