"""The metrics of a step: their order, which are shown first, and how values are printed. Pure.

What they mean is in the catalogue (``terms``). A metric goes by the name under which the database has it. Names may
come from anywhere (``add_metrics``), so an unknown one is foreign text.
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
"""No metric of steps: the scores of the newest evaluation series, which a chart shows like a metric."""
HELD_OUT_ON = "held-out "
"""With the name of a suite behind it, or with ``test``: likewise, the scores on these."""


@dataclass(frozen=True)
class Words:
    """A metric in words."""

    title: str
    meaning: str
    unit: bool = False
    """Whether it usually lies between 0 and 1, so that its chart covers that range."""
    important: bool = False
    """Whether it says first how a task is doing."""
    normal: str = ""
    """What it is like if all is well."""


_KNOWN = {term.recorded or term.name: term for term in TERMS if term.kind == "metric" or term.name == HELD_OUT}
BANDS = {REWARD: ("reward_min", "reward_max")}
"""Metrics that are the lower and upper edge of another metric's band."""
ROWS = "rows"
"""A metric that stands in the line of ``epoch``: the rows of the train split."""
WAITS = ("publish_wait_seconds", "begin_wait_seconds")
"""Metrics that are shown as a share of the step's time."""
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
"""How the units of the catalogue are printed; all others in about three digits."""
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
        return Words(title, term.line, term.unit in ("share", "score"), term.important, term.healthy)
    return Words(line(name, 14) or "?", "")


def held_out_on(name: str) -> str | None:
    """What a held-out metric is measured on: empty for the task's own prompts; None for a metric of steps."""
    if name == HELD_OUT:
        return ""
    return name.removeprefix(HELD_OUT_ON) if name.startswith(HELD_OUT_ON) else None


def known() -> dict[str, Words]:
    """All metrics that the catalogue has, the most important first."""
    return {name: words(name) for name in _KNOWN}


def in_order(names: Iterable[str]) -> list[str]:
    """The names that are listed: known metrics by importance, then all others by name."""
    given = set(names)
    others = sorted(name for name in given if name not in _KNOWN and name not in _EDGES and stale_age(name) is None)
    return [name for name in _KNOWN if name in given and name not in _EDGES] + others


def all_in_order(names: Iterable[str]) -> list[str]:
    """All names, those that no list shows at the end."""
    listed = in_order(given := list(names))
    return [*listed, *sorted(set(given) - set(listed))]


IMPORTANT = tuple(name for name, own in known().items() if own.important)
"""What shows if a task learns, in the order of the catalogue."""
_UNLESS_ZERO = ("kl", "errors", "lost", "cut", "on_error", "epoch")
"""Important as soon as they are not 0; those that stand in ``IMPORTANT`` keep their place there."""


def important(names: Sequence[str], newest: Mapping[str, float]) -> list[str]:
    """Those of the names that are shown first, in order: held-out scores on suites stand behind the own."""
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
    """The metrics' values at the newest step; a held-out score is the last there is.

    A metric that neither of the newest two steps has is left out: what it was before is not what it is now, as where no
    group has a signal any more. What the canary finds comes a moment after its step, so the step before counts, too.
    """
    known = {name: track for name, track in tracks.items() if track.steps}
    last = max((track.steps[-1] for name, track in known.items() if held_out_on(name) is None), default=0)
    return {
        name: track.values[-1]
        for name, track in known.items()
        if held_out_on(name) is not None or track.steps[-1] >= last - 1
    }


def newest_text(name: str, values: Mapping[str, float]) -> str:
    """The value of a metric among those of its step, which may say more of it: epoch 1.4 of 2,000 rows, or a wait of
    12 ms, 1.5 % of the step."""
    value, seconds = values.get(name), values.get("seconds", 0.0)
    if name in WAITS and value is not None and seconds > 0:
        return f"{_moment(value)}, {100 * value / seconds:.1f} %"
    text = value_text(name, value)
    return f"{text} of {values[ROWS]:,.0f} rows" if name == "epoch" and ROWS in values else text


def _three_digits(value: float) -> str:
    """0.742, 3.14, 31.4, 314; an exponent if it is very small."""
    return number(value, 3 if abs(value) < 1 else 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0)


def _moment(seconds: float) -> str:
    """A short span of time: 12 ms, 1.4 s."""
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else duration(seconds)


def exact(value: float | None) -> str:
    """A value with all significant digits."""
    return "-" if value is None else f"{value:.6g}"
