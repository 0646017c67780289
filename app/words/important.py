"""Which metrics are shown first, and which are diagnostics. Pure.

The one place that says so: the list of metrics, and the small charts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .metrics import HELD_OUT, HELD_OUT_ON, known

IMPORTANT = tuple(name for name, own in known().items() if own.important)
"""What says whether a task learns, in the order of the catalogue."""
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
