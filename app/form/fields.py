"""The fields of the form: every key of a task file, and the parameters of the environment that was chosen.

Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marlaas.engine.spec import REQUIRED, spec_fields

PARAMETERS = "environment_config"
"""The table of the environment's own parameters."""
FIRST = ("tenant", "name", "environment", "steps")
"""Keys that everybody sets."""
FOLDED = ("train", "sampling", "eval", "policy", "queue", "keep", "watch", "")
"""The tables that are folded, in this order; the last holds the other keys of the file itself."""


@dataclass(frozen=True)
class FormField:
    """One line of the form."""

    key: str
    """Dotted, as in a task file: train.learning_rate."""
    kind: str
    """int, float, str, bool, json or list"""
    default: str
    """The value where nothing is typed, as one would type it; empty where there is none."""
    allowed: str
    """What is allowed, in a few words: 1 to 512."""
    about: str = ""
    choices: tuple[str, ...] = ()
    swept: bool = False
    """Whether several values make a task for each."""
    required: bool = False

    @property
    def table(self) -> str:
        """The table of its key; empty for keys of the file itself."""
        return self.key.rpartition(".")[0]

    @property
    def name(self) -> str:
        """Within its table."""
        return self.key.rpartition(".")[2]


def task_fields() -> tuple[FormField, ...]:
    """The fields that every task has."""
    return tuple(
        FormField(
            field.key,
            field.kind,
            shown(field.default),
            _allowed(field.kind, field.low, field.high, field.choices),
            field.about,
            field.choices,
            field.swept,
            field.key in REQUIRED,
        )
        for field in spec_fields()
    )


def parameter_fields(parameters: Sequence[Mapping[str, Any]]) -> tuple[FormField, ...]:
    """The fields of an environment's parameters, which a plugin wrote and the store keeps."""
    return tuple(
        FormField(
            f"{PARAMETERS}.{entry['name']}",
            entry["type"],
            "" if entry.get("required") else shown(entry.get("default")),
            _allowed(entry["type"], entry.get("low"), entry.get("high"), entry.get("choices", ())),
            "A parameter of the environment.",
            tuple(map(str, entry.get("choices", ()))),
            True,
            bool(entry.get("required")),
        )
        for entry in parameters
    )


def shown(value: Any) -> str:
    """A value as one would type it into a field."""
    if value is None or value == ():
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)
    return json.dumps(value, ensure_ascii=False)


def _allowed(kind: str, low: float | None, high: float | None, choices: Sequence[Any]) -> str:
    if choices:
        return ", ".join(map(str, choices))
    if low is not None and high is not None:
        return f"{_bound(low)} to {_bound(high)}" if kind != "list" else "numbers or names, with commas"
    if low is not None or high is not None:
        return f"at least {_bound(low)}" if low is not None else f"at most {_bound(high)}"
    return {"bool": "true or false", "int": "a whole number", "float": "a number", "json": "JSON"}.get(kind, "")


def _bound(bound: float | None) -> str:
    """An end of a range; whole numbers without an exponent."""
    return f"{bound:.0f}" if bound is not None and float(bound).is_integer() else shown(bound)
