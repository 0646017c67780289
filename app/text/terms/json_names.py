"""The names of figures in JSON, CSV and TensorBoard: today's, and older ones that programs may still read.

The database keeps the names under which metrics were recorded first; what leaves the application has today's as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .catalogue import TERMS

_RECORDED = {term.recorded: term.key for term in TERMS if term.kind == "metric" and term.old}
_KEYS = {old: term.key for term in TERMS for old in term.old}
_OTHERS = frozenset({"metrics", "metrics_before", "metrics_after", "parts", "config", "parameters"})
"""Tables within a row whose names are a person's or an environment's own."""


def new_key(name: str) -> str:
    """Today's name of a metric of steps; ``name`` is the one that the database has.

    The metrics of a mixture's component keep its name before theirs.
    """
    component, colon, own = name.rpartition(": ")
    return f"{component}{colon}{_RECORDED.get(own, own)}"


def with_new_keys(metrics: Mapping[str, float]) -> dict[str, float]:
    """A step's metrics under today's names, each that has an older one under that, too."""
    return {key: value for name, value in metrics.items() for key in (new_key(name), name)}


def with_new_names(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as JSON has it: figures that have an older name under both, in rows within it, too."""
    named: dict[str, Any] = {}
    for name, value in row.items():
        own = value if name in _OTHERS else _within(value)
        if name in _KEYS:
            named.setdefault(_KEYS[name], own)
        named[name] = own
    return named


def _within(value: Any) -> Any:
    if isinstance(value, Mapping):
        return with_new_names(value)
    return [_within(item) for item in value] if isinstance(value, list | tuple) else value
