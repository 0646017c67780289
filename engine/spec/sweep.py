"""Sweeps: a task file in which keys have lists of values means one task, a member, for each combination. Pure.

A list for any key of ``[policy]``, ``[train]``, ``[sampling]`` or ``[eval]``, or for ``steps``, means one member for
each of its values; several lists mean their grid. ``[sweep]`` does the same for any key by its dotted name. It is for
``[environment_config]``, if a list may itself be a value. Values are checked where each member is parsed.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import product
from typing import Any

from .validation import RANGE, TYPE, Fault, refuse

MOST_MEMBERS = 1000
"""The most members of one sweep."""
TABLES = ("policy", "train", "sampling", "eval")
"""The tables whose keys have plain values, so that a list can only mean a sweep."""
IDENTITY = ("tenant", "name", "sweep")
"""Keys that all members share, and that cannot be swept."""
SHOWN = 40
"""Characters of a value in a member's name; of a longer one its place in the list is shown."""


@dataclass(frozen=True)
class Axis:
    """One key of a sweep and the values that it takes."""

    key: str
    """Dotted: train.learning_rate"""
    values: Sequence[Any]


@dataclass(frozen=True)
class Member:
    """One task of a task file."""

    table: dict[str, Any]
    family: str = ""
    """The name that all members of a sweep share; empty for a lone task."""
    places: Mapping[str, int] = field(default_factory=dict)
    """Of each key that is swept: the place of the member's value in its list."""


def members(table: dict[str, Any], where: str) -> list[Member]:
    """The tasks that a parsed task file describes: one, unless it sweeps.

    Each member is called "name [learning_rate=1e-4, rank=8]". Raises ``ConfigError``, with all mistakes; ``where``
    names the file in it.
    """
    faults: list[Fault] = []
    axes = list(_axes(table, faults))
    for key, times in Counter(axis.key for axis in axes).items():
        if times > 1:
            faults.append(Fault(key, f"{key!r} has values in two places.", "Keep one list of them."))
    size = math.prod(len(axis.values) for axis in axes)
    if size > MOST_MEMBERS:
        counts = " x ".join(f"{len(axis.values)} of {axis.key!r}" for axis in axes)
        says = f"the sweep has {size:,} tasks ({counts}); at most {MOST_MEMBERS:,} are allowed."
        faults.append(Fault(axes[0].key, says, also=tuple(axis.key for axis in axes[1:]), code=RANGE))
    labels = [_labels(axis, axes, faults) for axis in axes]
    refuse(faults, where)
    if not axes:
        return [Member({key: value for key, value in table.items() if key != "sweep"})]
    if not isinstance(table.get("name"), str):
        return [Member(one_of_each(table))]  # parsing it will raise the error
    choices = product(*(range(len(axis.values)) for axis in axes))
    return [_member(table, axes, labels, choice) for choice in choices]


def one_of_each(table: dict[str, Any]) -> dict[str, Any]:
    """The table with the first value of each list that sweeps, to check the rest of a file whose sweep is wrong."""
    plain = deepcopy({key: value for key, value in table.items() if key != "sweep"})
    for owner, name, _, values in list(_lists(plain)):
        if values:
            owner[name] = values[0]
        else:
            del owner[name]
    return plain


def _lists(table: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str, str, list[Any]]]:
    """The lists that sweep, in the order of the file: table, key in it, dotted key, values."""
    for key, value in table.items():
        if key == "steps" and isinstance(value, list):
            yield table, key, key, value
        elif key in TABLES and isinstance(value, dict):
            own = ((name, f"{key}.{name}", values) for name, values in value.items() if isinstance(values, list))
            yield from ((value, name, dotted, values) for name, dotted, values in own if dotted != "eval.suite")


def _axes(table: dict[str, Any], faults: list[Fault]) -> Iterator[Axis]:
    """The keys that are swept; what is wrong with them is added to ``faults``."""
    for _, _, key, values in _lists(table):
        yield from _axis(key, values, faults)
    sweep = table.get("sweep", {})
    if not isinstance(sweep, dict):
        hint = "Write [sweep] and below it a list for each key."
        faults.append(Fault("sweep", "'sweep' must be a table.", hint, code=TYPE))
        return
    for key, values in _flat(sweep):
        if key.partition(".")[0] in IDENTITY:
            faults.append(Fault(key, f"[sweep] cannot change {key!r}; all of its tasks share it."))
        elif not isinstance(values, list):
            faults.append(Fault(key, f"{key!r} in [sweep] must be a list of values.", code=TYPE))
        elif _has(table, key):
            faults.append(Fault(key, f"{key!r} stands in [sweep] and outside of it.", "Keep one of the two."))
        else:
            yield from _axis(key, values, faults)


def _flat(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested tables as dotted keys with their values: TOML reads an unquoted dotted key as nested tables."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _axis(key: str, values: Sequence[Any], faults: list[Fault]) -> Iterator[Axis]:
    if values:
        yield Axis(key, values)
    else:
        faults.append(Fault(key, f"{key!r} is an empty list; a sweep needs values.", code=RANGE))


def _has(table: dict[str, Any], key: str) -> bool:
    inner: Any = table
    for part in key.split("."):
        if not isinstance(inner, dict) or part not in inner:
            return False
        inner = inner[part]
    return True


def _labels(axis: Axis, axes: Sequence[Axis], faults: list[Fault]) -> list[str]:
    """How each value of an axis shows in a member's name, which must tell the members apart."""
    short = axis.key.rpartition(".")[2]
    ambiguous = sum(other.key.rpartition(".")[2] == short for other in axes) > 1
    shown = [_shown(value, place) for place, value in enumerate(axis.values, 1)]
    for text, times in Counter(shown).items():
        if times > 1:
            faults.append(Fault(axis.key, f"{axis.key!r} lists {text} {times} times."))
    return [f"{axis.key if ambiguous else short}={text}" for text in shown]


def _shown(value: Any, place: int) -> str:
    """A value as its author may have written it: 1e-4, 0.5, true, warm."""
    if isinstance(value, float) and math.isfinite(value) and value and not 1e-3 <= abs(value) < 1e6:
        return f"{Decimal(repr(value)).normalize():e}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= SHOWN else f"#{place}"


def _member(
    table: dict[str, Any], axes: Sequence[Axis], labels: Sequence[Sequence[str]], choice: Sequence[int]
) -> Member:
    """The member that has, of each axis, the value at the place in ``choice``."""
    member = deepcopy({key: value for key, value in table.items() if key != "sweep"})
    for axis, place in zip(axes, choice, strict=True):
        *path, last = axis.key.split(".")
        inner = member
        for part in path:
            if not isinstance(inner.get(part), dict):
                inner[part] = {}
            inner = inner[part]
        inner[last] = deepcopy(axis.values[place])
    shown = (own[place] for own, place in zip(labels, choice, strict=True))
    member["name"] = f"{table['name']} [{', '.join(shown)}]"
    return Member(member, table["name"], {axis.key: place for axis, place in zip(axes, choice, strict=True)})
