"""Sweeps: a list of values for a key means one task, a member, for each.

For any key of ``[policy]``, ``[train]``, ``[sampling]``, ``[eval]`` and ``steps``; several lists mean their grid.
``[sweep]`` is for any dotted key, also of ``[environment_config]``: its values may be lists. Members are checked when
parsed.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from decimal import Decimal
from itertools import product
from typing import Any

from ..errors import ConfigError
from .validation import RANGE, TYPE, fault, refuse

MOST_MEMBERS = 1000
TABLES = ("policy", "train", "sampling", "eval")
"""Plain values: a list can only mean a sweep."""
IDENTITY = ("tenant", "name", "sweep")
"""Keys that all members share."""
SHOWN = 40
"""Characters of a value in a member's name; longer ones show their place in the list."""


@dataclass(frozen=True)
class Member:
    """One task of the file."""

    table: dict[str, Any]
    family: str = ""
    """The sweep's name; empty for a single task."""


def members(table: dict[str, Any], where: str) -> list[Member]:
    """One, unless the file sweeps.

    Each is called "name [learning_rate=1e-4, rank=8]". Raises ``ConfigError`` with all mistakes; ``where`` names the
    file.
    """
    faults: list[ConfigError] = []
    axes = dict(_swept(table, faults))
    faults += (
        fault(key, f"{key!r} is an empty list; a sweep needs values.", code=RANGE)
        for key, values in axes.items()
        if not values
    )
    size = math.prod(map(len, axes.values()))
    if size > MOST_MEMBERS:
        counts = " x ".join(f"{len(values)} of {key!r}" for key, values in axes.items())
        says = f"the sweep has {size:,} tasks ({counts}); at most {MOST_MEMBERS:,} are allowed."
        first, *others = axes
        faults.append(fault(first, says, also=tuple(others), code=RANGE))
    short = Counter(key.rpartition(".")[2] for key in axes)
    labels = {key: [_shown(value, place) for place, value in enumerate(values, 1)] for key, values in axes.items()}
    faults += (
        fault(key, f"{key!r} lists {text} {times} times.")
        for key, texts in labels.items()
        for text, times in Counter(texts).items()
        if times > 1
    )
    refuse(faults, where)
    if not axes or not isinstance(table.get("name"), str):  # without a name, parsing raises the error
        return [Member(one_of_each(table))]
    found = []
    for choice in product(*(range(len(values)) for values in axes.values())):
        places, member = dict(zip(axes, choice, strict=True)), _without_sweep(table)
        for key, place in places.items():
            *path, last = key.split(".")
            inner = member
            for part in path:
                if not isinstance(inner.get(part), dict):
                    inner[part] = {}
                inner = inner[part]
            inner[last] = deepcopy(axes[key][place])
        names = {key: last if short[last := key.rpartition(".")[2]] == 1 else key for key in axes}
        shown = ", ".join(f"{names[key]}={labels[key][place]}" for key, place in places.items())
        found.append(Member(member | {"name": f"{table['name']} [{shown}]"}, table["name"]))
    return found


def one_of_each(table: dict[str, Any]) -> dict[str, Any]:
    """With each list's first value, to check the rest of a wrong sweep."""
    plain = _without_sweep(table)
    for owner, name, _, values in list(_lists(plain)):
        if values:
            owner[name] = values[0]
        else:
            del owner[name]
    return plain


def _without_sweep(table: dict[str, Any]) -> dict[str, Any]:
    return deepcopy({key: value for key, value in table.items() if key != "sweep"})


def _lists(table: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str, str, list[Any]]]:
    """In file order: table, key in it, dotted key, values."""
    for key, value in table.items():
        if key == "steps" and isinstance(value, list):
            yield table, key, key, value
        elif key in TABLES and isinstance(value, dict):
            pairs = ((name, f"{key}.{name}", values) for name, values in value.items() if isinstance(values, list))
            yield from ((value, name, dotted, values) for name, dotted, values in pairs if dotted != "eval.suite")


def _swept(table: dict[str, Any], faults: list[ConfigError]) -> Iterator[tuple[str, Sequence[Any]]]:
    """Mistakes are added to ``faults``."""
    yield from ((key, values) for _, _, key, values in _lists(table))
    sweep = table.get("sweep", {})
    if not isinstance(sweep, dict):
        hint = "Write [sweep] and below it a list for each key."
        faults.append(fault("sweep", "'sweep' must be a table.", hint, code=TYPE))
        return
    swept = set[str]()
    outside = {
        ".".join(parts[:depth])
        for parts in (key.split(".") for key, _ in _flat(table))
        for depth in range(1, len(parts) + 1)
    }
    for key, values in _flat(sweep):
        if key.partition(".")[0] in IDENTITY:
            faults.append(fault(key, f"[sweep] cannot change {key!r}; all of its tasks share it."))
        elif not isinstance(values, list):
            faults.append(fault(key, f"{key!r} in [sweep] must be a list of values.", code=TYPE))
        elif key in outside:
            faults.append(fault(key, f"{key!r} stands in [sweep] and outside of it.", "Keep one of the two."))
        elif key in swept:
            faults.append(fault(key, f"{key!r} has values in two places.", "Keep one list of them."))
        else:
            swept.add(key)
            yield key, values


def _flat(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """TOML reads an unquoted dotted key as nested tables."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _shown(value: Any, place: int) -> str:
    """As authors write it: 1e-4, 0.5, true, warm."""
    if isinstance(value, float) and math.isfinite(value) and value and not 1e-3 <= abs(value) < 1e6:
        return f"{Decimal(repr(value)).normalize():e}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= SHOWN else f"#{place}"
