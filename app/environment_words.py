"""Environments as the store has them: whom a name means, and how their parameters and states read. Pure.

Rows flow in, rows and words flow out. Parameters were declared by a plugin: their texts are made safe by who prints.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from marlaas.engine.store.rows import EnvironmentRow

STATES = {
    "ready": "serves",
    "loading": "is being loaded; until then the version before serves, if there was one",
    "broken": "no version serves",
    "stale": "an older version serves; the newest edit does not load",
    "failing": "serves, but with some parameters only errors came of it: tasks with these wait",
    "hidden": "is not served: another plugin has its name",
    "waiting": "waits for somebody to allow its libraries",
    "building": "its libraries are being installed",
}
"""What a state means."""


def named(name: str, rows: Sequence[EnvironmentRow]) -> list[EnvironmentRow]:
    """The environment of that name, or all of the plugin of that name. Raises ``EnvironmentMissing``."""
    from marlaas.engine.queue import find_environment

    of_plugin = [row for row in rows if plugin_of(row) == name]
    return of_plugin or [find_environment(name, list(rows))]


def plugin_of(row: EnvironmentRow) -> str:
    """The plugin that it belongs to."""
    return row.name.partition("/")[0]


def place_of(row: EnvironmentRow) -> str:
    """Where in the plugin its error lies, in brackets; empty where nobody knows."""
    place = f"{row.file}:{row.line}" if row.line else row.file
    return f" ({place})" if place else ""


def short(parameter: Mapping[str, Any]) -> str:
    """A parameter in a word: ``digits=2``, with its bounds ``digits=2 (1..9)``; without ``=`` where it is required."""
    text = str(parameter.get("name"))
    if not parameter.get("required"):
        text += f"={_json(parameter.get('default'))}"
    return text + (f" ({bounds(parameter)})" if bounds(parameter) else "")


def bounds(parameter: Mapping[str, Any]) -> str:
    """What it may be: ``1..9``, ``0..``, ``easy|hard``; empty where nothing is said."""
    if parameter.get("choices"):
        return "|".join(map(str, parameter["choices"]))
    low, high = parameter.get("low"), parameter.get("high")
    if low is None and high is None:
        return ""
    return f"{'' if low is None else _number(low)}..{'' if high is None else _number(high)}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, bool | list | dict) else str(value)


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
