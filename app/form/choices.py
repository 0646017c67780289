"""What may be chosen in a field: values, each with a word about it, and those that fit what was typed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from marlaas.engine.spec import BASE
from marlaas.engine.store import EnvironmentRow, KeptVersion

from ..home.references import reference
from ..words.environments.facts import place_of
from ..words.format import line, score
from .fields import FormField

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
