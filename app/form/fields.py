"""The fields of the form: every key of a task file, what may be chosen, and what the form says of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from marlaas.engine.spec import BASE, REQUIRED, SpecField, policy_fields, spec_fields
from marlaas.engine.store import EnvironmentRow, KeptVersion

from ..home.references import reference
from ..words.environments.facts import place_of
from ..words.format import line, score

# What may be chosen in a field: values, each with a word about it, and those that fit what was typed. Pure.

GOOD, DOUBTFUL, BAD = "good", "doubtful", "bad"
"""What is known of a choice: it works, it may not, or it does not work."""
MOST = 200
"""Choices that are offered at once; typing leaves fewer."""
LOSSES = {
    "dr_grpo": "the usual one: advantage without deviation, one divisor for all lengths",
    "grpo": "clipped ratios, mean over each reply first; advantage in deviations",
    "dapo": "as grpo, clipped higher above, mean over tokens, equal groups replaced",
    "cispo": "clips the weight of a token and drops none; mean over tokens",
    "gspo": "one ratio for the whole reply",
    "reinforce": "nothing is clipped; compared with the mean of the others",
    "ppo": "decoupled: for several updates on the same episodes (epochs above 1)",
}
"""Each loss in a few words; docs/guides/losses.md has the formulas."""
_STATES = {"ready": GOOD, "stale": DOUBTFUL, "failing": DOUBTFUL, "loading": DOUBTFUL, "building": DOUBTFUL}


@dataclass(frozen=True)
class Choice:
    """One value that may be chosen."""

    value: str
    """As one would type it."""
    note: str = ""
    """What it is, in safe words."""
    standing: str = ""
    """``GOOD``, ``DOUBTFUL``, ``BAD``, or empty where there is nothing to know."""


def of_environments(rows: Sequence[EnvironmentRow], plugins: Sequence[str]) -> tuple[Choice, ...]:
    """Environments with their state and description, those that work first; without an engine only plugins' names."""
    shown = [row for row in rows if row.state != "hidden"]
    short = [row.name.rpartition("/")[2] for row in shown]
    choices = [
        Choice(
            name if short.count(name) == 1 else row.name,
            _of_environment(row),
            _STATES.get(row.state, BAD),
        )
        for name, row in zip(short, shown, strict=True)
    ]
    choices.sort(key=lambda choice: (GOOD, DOUBTFUL, BAD).index(choice.standing))
    return tuple(choices) or tuple(Choice(name, "not looked at yet: no engine has run") for name in plugins)


def _of_environment(row: EnvironmentRow) -> str:
    said = f"{row.message}{place_of(row)}" if row.message and row.state != "ready" else row.description
    return line(f"{row.state}: {said}" if said else row.state, 200)


def of_versions(kept: Iterable[KeptVersion]) -> tuple[Choice, ...]:
    """Versions on the disk, those of the newest task first."""
    newest = sorted(kept, key=lambda each: (each.row.task, each.row.number), reverse=True)
    return tuple(Choice(reference(each.row), _of_version(each), GOOD) for each in newest)


def _of_version(kept: KeptVersion) -> str:
    row, label = kept.row, f"{kept.label}, " if kept.label else ""
    return line(f"{label}held-out {score(row.score)}: {row.tenant} / {row.task_name}, on {kept.environment}", 200)


def of_bases(home_base: str, others: Iterable[str]) -> tuple[Choice, ...]:
    """The home's base, and others, which a home of their own would need."""
    foreign = (name for name in dict.fromkeys(others) if name != home_base)
    return (
        Choice(home_base, "the base of this home", GOOD),
        *(Choice(name, "another base: needs a home of its own (--home)", BAD) for name in foreign),
    )


def of_field(field: FormField) -> tuple[Choice, ...]:
    """The values that a field itself allows."""
    if field.key == "train.loss":
        return tuple(Choice(loss, LOSSES.get(loss, "")) for loss in field.choices)
    return tuple(map(Choice, field.choices or (("true", "false") if field.kind == "bool" else ())))


def players(policies: Sequence[str], versions: Sequence[Choice]) -> tuple[Choice, ...]:
    """What a frozen policy can be: the bare base, what a policy of the task began as, or any version."""
    own = (Choice(f"{name}@0", f"what {line(name, 40)} begins as") for name in policies)
    return (Choice(BASE, "the bare base"), *own, *versions)


def fitting(choices: Sequence[Choice], typed: str) -> list[Choice]:
    """Choices with all words of what was typed in value or note; those that begin with it come first.

    Of several values with commas only the last is looked at.
    """
    wanted = _last(typed).casefold()
    words = wanted.split()
    found = [choice for choice in choices if all(word in f"{choice.value} {choice.note}".casefold() for word in words)]
    found.sort(key=lambda choice: not choice.value.casefold().startswith(wanted))
    return found[:MOST]


def taken(typed: str, choice: Choice) -> str:
    """What stands in the field once the choice is taken, in place of the last value."""
    before, comma, _ = typed.rpartition(",")
    return f"{before}{comma} {choice.value}" if comma else choice.value


def chosen(choices: Sequence[Choice], typed: str) -> Choice | None:
    """The choice that was typed in full."""
    return next((choice for choice in choices if choice.value == _last(typed)), None)


def _last(typed: str) -> str:
    return typed.rpartition(",")[2].strip()


# The fields of the form: every key of a task file, and the parameters of the environment that was chosen.
#
# Pure.

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
