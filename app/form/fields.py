"""The fields of the form: every key of a task file, and the parameters of the environment that was chosen.

Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from marlaas.engine.spec import REQUIRED, SpecField, policy_fields, spec_fields

PARAMETERS = "environment_config"
"""The table of the environment's own parameters."""
FIRST = ("tenant", "name", "environment", "steps")
"""Keys that everybody sets."""
FOLDED = ("train", "sampling", "eval", "policy", "data", "queue", "keep", "watch", "")
"""The tables that are folded, in this order; the last holds the other keys of the file itself."""
POLICIES, AGENTS = "policies", "agents"
"""The tables of several policies by name, and of who acts as which agent. The fields of these names hold the names
in them, and so decide which fields there are besides."""
NAMES = "names"
"""The kind of such a field."""


@dataclass(frozen=True)
class FormField:
    """One line of the form."""

    key: str
    """Dotted, as in a task file: train.learning_rate."""
    kind: str
    """int, float, str, bool, json, list or names"""
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
        return AGENTS if self.key.startswith(f"{AGENTS}.") else self.key.rpartition(".")[0]

    @property
    def name(self) -> str:
        """Within its table."""
        return self.key.removeprefix(f"{self.table}.")


@cache
def task_fields() -> tuple[FormField, ...]:
    """The fields that every task has."""
    return tuple(_field(field, field.key, field.swept) for field in spec_fields())


def named_fields(policies: Sequence[str], agents: Sequence[str]) -> tuple[FormField, ...]:
    """The fields of several policies: their names, the names of agents, who acts as each, and each policy's own."""
    own = (
        _field(field, field.key.replace("NAME", name, 1), field.kind in ("int", "float"))
        for name in policies
        for field in policy_fields()
    )
    return (*name_fields(), *(_speaker(agent) for agent in agents if policies), *own)


def name_fields() -> tuple[FormField, ...]:
    """The two fields that hold names."""
    policies = "Instead of [policy]: several, each with an adapter of its own, frozen, or a pool of earlier versions."
    agents = "The agents of the environment; one that declares them needs no names here."
    allowed = "names, with commas"
    return FormField(POLICIES, NAMES, "", allowed, policies), FormField(AGENTS, NAMES, "", allowed, agents)


def _speaker(agent: str) -> FormField:
    about = "Which policy acts as this agent."
    return FormField(f"{AGENTS}.{agent}", "str", "", "one of the policies", about, required=True)


def _field(field: SpecField, key: str, swept: bool) -> FormField:
    return FormField(
        key,
        field.kind,
        shown(field.default),
        _allowed(field.kind, field.low, field.high, field.choices) + (", or auto" if field.auto else ""),
        field.about,
        field.choices,
        swept,
        key in REQUIRED,
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
    """An end of a range; whole numbers without an exponent, in groups of three digits."""
    return f"{bound:,.0f}" if bound is not None and float(bound).is_integer() else shown(bound)
