"""Groups that go by their number alone: each sampler gets its part of them."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.sampler.other_ways import sampler_of
from marlaas.engine.fleet.routing.assignment import Share


def test_groups_are_spread_by_the_parts_in_every_run_of_numbers() -> None:
    shares = (Share("x", 0.7), Share("y", 0.3))
    for first in (0, 17, 1000):
        served = Counter(sampler_of(shares, group) for group in range(first, first + 100))
        assert served["x"] == pytest.approx(70, abs=3)
    assert sampler_of((Share("x", 0.999999),), 123456789) == "x"
