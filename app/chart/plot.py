"""What a chart shows: curves, points with errors, axis ranges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# Axis ranges and ticks. Finite values from 1e-250 to 1e250; values beyond are clamped.

_TINY, _HUGE = 1e-250, 1e250
_FINEST = 1e-6
"""A range narrower than this share of its values counts as constant: labels could not separate its ends."""
_AROUND = 0.1
"""Range to either side of a constant, as a share of it."""
_UNITS = ((12, "T"), (9, "G"), (6, "M"), (3, "k"))


@dataclass(frozen=True)
class Tick:
    """A labelled value."""

    value: float
    label: str


@dataclass(frozen=True)
class Scale:
    """A range and its ticks."""

    low: float
    high: float
    ticks: tuple[Tick, ...]
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """Position of a finite value, 0 (lowest) to 1; clamped."""
        value = min(self.high, max(self.low, value))
        if self.logarithmic:
            low, high, value = math.log10(self.low), math.log10(self.high), math.log10(value)
            return (value - low) / (high - low)
        return (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)


def linear(low: float, high: float, most: int) -> Scale:
    """From the tick below ``low`` to the one above ``high``; at most ``most`` ticks, or three."""
    most = max(3, most)
    low, high = sorted((_tame(low), _tame(high)))
    size = max(abs(low), abs(high))
    if high - low <= size * _FINEST:
        low, high = low - (size * _AROUND or 1.0), high + (size * _AROUND or 1.0)
    factor, exponent = _tick_size((high - low) / (most - 1))
    while True:
        tick = factor * 10.0**exponent
        first, last = math.floor(low / tick + 1e-9), math.ceil(high / tick - 1e-9)
        if last - first < most:
            break
        factor, exponent = {1: (2, exponent), 2: (5, exponent), 5: (1, exponent + 1)}[factor]
    values = [index * factor * 10.0**exponent for index in range(first, max(last, first + 1) + 1)]
    labels = _labels(values, exponent)
    return Scale(values[0], values[-1], tuple(map(Tick, values, labels)))


def logarithmic(low: float, high: float, most: int) -> Scale:
    """Powers of ten, with 2 and 5 between them if there is room. Both ends are above 0."""
    low, high = sorted((max(_TINY, _tame(low)), max(_TINY, _tame(high))))
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    fine = [(factor, power) for power in range(first, last + 1) for factor in (1, 2, 5)]
    values = [factor * 10.0**power for factor, power in fine]
    begin = max(index for index, value in enumerate(values) if index == 0 or value <= low * (1 + 1e-9))
    end = min(index for index, value in enumerate(values) if index == len(values) - 1 or value >= high * (1 - 1e-9))
    if begin < end and end - begin + 1 <= max(2, most):
        ticks = tuple(Tick(values[index], _power_label(*fine[index])) for index in range(begin, end + 1))
    else:
        apart = max(1, math.ceil((last - first) / max(1, most - 1)))
        powers = range(first, max(last, first + 1) + apart, apart)
        powers = powers[: 1 + max(1, math.ceil((last - first) / apart))]
        ticks = tuple(Tick(10.0**power, _power_label(1, power)) for power in powers)
    return Scale(ticks[0].value, ticks[-1].value, ticks, logarithmic=True)


def short(value: float) -> str:
    """A number ≥ 0 in the notation of ticks, four digits."""
    shift, unit = next(((shift, unit) for shift, unit in _UNITS if value >= 10 ** max(shift, 4)), (0, ""))
    return f"{value / 10**shift:.4g}{unit}"


def _tame(value: float) -> float:
    value = min(_HUGE, max(-_HUGE, value))
    return 0.0 if abs(value) < _TINY else value


def _tick_size(least: float) -> tuple[int, int]:
    """The least 1, 2 or 5 times a power of ten ≥ ``least``, as (factor, exponent)."""
    exponent = math.floor(math.log10(least))
    return next(
        ((factor, exponent) for factor in (1, 2, 5) if factor * 10.0**exponent >= least * (1 - 1e-9)),
        (1, exponent + 1),
    )


def _labels(values: Sequence[float], exponent: int) -> list[str]:
    """Multiples of 10^exponent in one notation, with enough decimals to differ."""
    power = math.floor(math.log10(max(map(abs, values)) * (1 + 1e-9)))
    if power < -3 or power >= 15:
        decimals = max(0, power - exponent)
        return [f"{value / 10.0**power:.{decimals}f}e{power}" if value else "0" for value in values]
    shift, unit = next(((shift, unit) for shift, unit in _UNITS if power >= max(shift, 4)), (0, ""))
    decimals = max(0, shift - exponent)
    return [f"{value / 10**shift:.{decimals}f}{unit}" if value or not unit else "0" for value in values]


def _power_label(factor: int, power: int) -> str:
    return f"{factor * 10.0**power:g}" if -3 <= power < 4 else f"{factor}e{power}"


MOST_CURVES = 4
SHAPES = "■▲▼►"
"""By ``Curve.place``, to tell curves apart besides colours."""


@dataclass(frozen=True)
class Curve:
    """One number by step."""

    steps: Sequence[int]
    """Ascending."""
    values: Sequence[float]
    """One per step; a non-finite value is a gap."""
    low: Sequence[float] = ()
    """Lower edge of the band, by step; empty: the least value of the steps in a column."""
    high: Sequence[float] = ()
    raw: Sequence[float] = ()
    """Values before smoothing, by step; drawn faintly behind a single curve. Empty: not smoothed."""
    place: int = 0
    """Index of its shape and colour; constant while it is shown."""


@dataclass(frozen=True)
class Point:
    """A held-out score."""

    step: int
    score: float
    error: float = 0.0
    """Standard error."""
    earlier: bool = False
    """True if of an earlier series: not comparable with the newest."""


@dataclass(frozen=True)
class Mark:
    """An event before a step."""

    step: int
    label: str
    """A few characters of width 1."""


@dataclass(frozen=True)
class Plot:
    """Everything drawn into one chart."""

    curves: Sequence[Curve] = ()
    """Up to ``MOST_CURVES``; a single curve has its band."""
    points: Sequence[Point] = ()
    """Ascending by step."""
    baseline: float | None = None
    marks: Sequence[Mark] = ()
    """Ascending by step."""
    end: float = 1.0
    """The last planned step."""
    logarithmic: bool = False
    unit: bool = False
    """True: the vertical axis covers 0 to 1."""
    cursor: int | None = None
    band: bool = True
    """True: a single curve has its band and raw values."""

    @property
    def empty(self) -> bool:
        return not self.points and not any(len(curve.steps) for curve in self.curves)
