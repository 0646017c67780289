"""Metrics of a step: order, importance, printed values. Pure.

Their meaning is in the catalogue (``terms``). Unknown names are foreign text (``add_metrics``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from marlaas.engine.store.queries.learning import Track
from marlaas.engine.store.rows import stale_age

from .format import count, counted, duration, line, number, score, share
from .terms import TERMS

REWARD = "reward"
HELD_OUT = "held-out"
"""Scores of the newest series, which a chart shows like a metric."""
HELD_OUT_ON = "held-out "
"""Followed by a suite's name or ``test``: scores on these."""


@dataclass(frozen=True)
class Words:
    """A metric in words."""

    title: str
    meaning: str
    unit: bool = False
    """True: its chart covers 0 to 1."""


_KNOWN = {term.recorded or term.name: term for term in TERMS if term.kind == "metric" or term.name == HELD_OUT}
BANDS = {REWARD: ("reward_min", "reward_max")}
"""Lower and upper edge of a metric's band."""
ROWS = "rows"
"""Shown in the line of ``epoch``: rows of the train split."""
WAITS = ("publish_wait_seconds", "begin_wait_seconds")
"""Shown as a share of the step's time."""
_PRINTED: dict[str, Callable[[float], str]] = {
    "score": score,
    "reward": score,
    "share": share,
    "seconds": duration,
    "count": lambda value: count(round(value)),
    "tokens": lambda value: number(value, 1) if abs(value) < 100 else count(round(value)),
    "versions": lambda value: number(value, 1),
    "epochs": lambda value: number(value, 1 if abs(value) >= 10 else 2),
}
"""By unit; others have three digits."""
_EDGES = {ROWS, *(edge for edges in BANDS.values() for edge in edges)}


def words(name: str) -> Words:
    """The words for any metric."""
    if name.startswith(HELD_OUT_ON):
        on = line(name.removeprefix(HELD_OUT_ON), 40)
        what = "the split test, measured once, at the end" if on == "test" else f"the suite {on}"
        return Words(on, f"score on {what}", True)
    if (age := stale_age(name)) is not None:
        old = f"{counted(age, 'version')} old"
        return Words(f"groups {old}", f"how many of the trained groups were {old}")
    component, _, own = name.rpartition(": ")
    if own in _KNOWN:
        term = _KNOWN[own]
        title = f"{line(component, 40)}: {term.name}" if component else term.name
        return Words(title, term.line, term.unit in ("share", "score"))
    return Words(line(name, 14) or "?", "")


def held_out_on(name: str) -> str | None:
    """Empty: the task's prompts; None: a metric of steps."""
    if name == HELD_OUT:
        return ""
    return name.removeprefix(HELD_OUT_ON) if name.startswith(HELD_OUT_ON) else None


def in_order(names: Iterable[str]) -> list[str]:
    """Listed names: by importance, then by name."""
    given = set(names)
    others = sorted(name for name in given if name not in _KNOWN and name not in _EDGES and stale_age(name) is None)
    return [name for name in _KNOWN if name in given and name not in _EDGES] + others


def all_in_order(names: Iterable[str]) -> list[str]:
    """With unlisted names at the end."""
    listed = in_order(given := list(names))
    return [*listed, *sorted(set(given) - set(listed))]


IMPORTANT = tuple(name for name, term in _KNOWN.items() if term.important)
"""In the order of the catalogue."""
_UNLESS_ZERO = ("kl", "errors", "lost", "cut", "on_error", "epoch")
"""Important as soon as they are not 0."""


def important(names: Sequence[str], newest: Mapping[str, float]) -> list[str]:
    """The names that are shown first; scores on suites follow the own."""
    there = [name for name in names if newest.get(name) or name not in _UNLESS_ZERO]
    own = [name for name in IMPORTANT if name in there]
    place = next((place for place, name in enumerate(own, 1) if name == HELD_OUT), len(own))
    suites = [name for name in names if name.startswith(HELD_OUT_ON)]
    trouble = [name for name in _UNLESS_ZERO if name in there and name not in IMPORTANT]
    return [*own[:place], *suites, *own[place:], *trouble]


def value_text(name: str, value: float | None) -> str:
    """A value in few digits."""
    if value is None or not math.isfinite(value):
        return number(value)
    if held_out_on(name) is not None:
        return score(value)
    if stale_age(name) is not None:
        return count(round(value))
    term = _KNOWN.get(name.rpartition(": ")[2])
    return _PRINTED.get(term.unit if term else "", _three_digits)(value)


def newest_values(tracks: Mapping[str, Track]) -> dict[str, float]:
    """Values at the newest step; a held-out score is the last one.

    Metrics that the newest two steps lack are left out. The canary's come a moment after their step, so two count.
    """
    known = {name: track for name, track in tracks.items() if track.steps}
    last = max((track.steps[-1] for name, track in known.items() if held_out_on(name) is None), default=0)
    return {
        name: track.values[-1]
        for name, track in known.items()
        if held_out_on(name) is not None or track.steps[-1] >= last - 1
    }


def newest_text(name: str, values: Mapping[str, float]) -> str:
    """A value with its context: epoch 1.4 of 2,000 rows; a wait of 12 ms, 1.5 % of the step."""
    value, seconds = values.get(name), values.get("seconds", 0.0)
    if name in WAITS and value is not None and seconds > 0:
        waited = f"{1000 * value:.0f} ms" if value < 1 else duration(value)
        return f"{waited}, {100 * value / seconds:.1f} %"
    text = value_text(name, value)
    return f"{text} of {values[ROWS]:,.0f} rows" if name == "epoch" and ROWS in values else text


def _three_digits(value: float) -> str:
    """0.742, 3.14, 31.4, 314; exponents for very small ones."""
    return number(value, 3 if abs(value) < 1 else 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0)


def exact(value: float | None) -> str:
    """All significant digits."""
    return "-" if value is None else f"{value:.6g}"
