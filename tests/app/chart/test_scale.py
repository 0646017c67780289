"""Axes: ticks at round numbers, labels that tell them apart."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from marlaas.app.chart.plot import Scale, linear, logarithmic, short


def labels(scale: Scale) -> list[str]:
    return [tick.label for tick in scale.ticks]


@pytest.mark.parametrize(
    ("low", "high", "most", "expected"),
    [
        (0.0, 1.0, 6, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (0.0, 1.0, 2, ["0.0", "0.5", "1.0"]),
        (-0.0132, 0.0251, 5, ["-0.02", "0.00", "0.02", "0.04"]),
        (1e-5, 6e-5, 4, ["0", "2e-5", "4e-5", "6e-5"]),
        (0.0, 1e6, 3, ["0", "0.5M", "1.0M"]),
        (12_000, 14_000, 3, ["12k", "13k", "14k"]),
        (1e6, 1e6 + 4, 3, ["1.000000M", "1.000002M", "1.000004M"]),
        (0.5, 0.5, 3, ["0.45", "0.50", "0.55"]),
        (0.0, 0.0, 3, ["-1", "0", "1"]),
        (-3e20, 3e20, 3, ["-5e20", "0", "5e20"]),
    ],
)
def test_ticks_are_round(low: float, high: float, most: int, expected: list[str]) -> None:
    assert labels(linear(low, high, most)) == expected


@pytest.mark.parametrize(
    ("low", "high", "most", "expected"),
    [
        (1e-5, 1.0, 6, ["1e-5", "1e-4", "0.001", "0.01", "0.1", "1"]),
        (1e-6, 1e3, 4, ["1e-6", "0.001", "1", "1000"]),
        (0.3, 0.9, 5, ["0.2", "0.5", "1"]),
        (1.0, 1.0, 5, ["1", "10"]),
        (3e-5, 4e6, 2, ["1e-5", "1e7"]),
    ],
)
def test_powers(low: float, high: float, most: int, expected: list[str]) -> None:
    assert labels(logarithmic(low, high, most)) == expected


@given(st.floats(-1e305, 1e305), st.floats(-1e305, 1e305), st.integers(0, 40))
def test_any_range_is_covered(one: float, other: float, most: int) -> None:
    low, high = sorted((one, other))
    for scale in (linear(low, high, most), logarithmic(max(low, 1e-300), max(high, 1e-300), most)):
        assert 2 <= len(scale.ticks) <= max(3, most)
        assert scale.place(low) >= 0.0 and scale.place(high) <= 1.0 and scale.place(low) <= scale.place(high)
        values = [tick.value for tick in scale.ticks]
        assert values == sorted(set(values)) and len(set(labels(scale))) == len(values)
        assert all(len(label) <= 12 for label in labels(scale))


@pytest.mark.parametrize(
    ("value", "expected"), [(0, "0"), (7.5, "7.5"), (1234, "1234"), (25_000, "25k"), (1e6, "1M"), (123_456, "123.5k")]
)
def test_a_number_by_itself(value: float, expected: str) -> None:
    assert short(value) == expected
