"""Checks a form field by field, in the sentences of validation, and lists the tasks that it stands for. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from marlaas.engine.errors import ConfigError
from marlaas.engine.spec import TaskSpec, build
from marlaas.engine.store import EnvironmentRow, Submission
from marlaas.engine.submission import check_environment, taskfile

from ..home.task_text import written
from .fields import AGENTS, FIRST, FOLDED, NAMES, PARAMETERS, POLICIES, FormField
from .texts import Several, joined, place, read, table_of

WHERE = "the form"
_STANDING = {"tenant": "t", "name": "n", "environment": "e"}
"""Values for the other required keys, so that one key can be checked by itself."""


@dataclass(frozen=True)
class Checked:
    """The result of checking a form."""

    problems: Mapping[str, str] = field(default_factory=dict)
    """Sentences by key; the key "" has what belongs to no field."""
    missing: frozenset[str] = frozenset()
    """Keys that must be given and are not, which is no mistake yet."""
    text: str = ""
    """The task file."""
    submissions: tuple[Submission, ...] = ()
    """The tasks; none while anything is wrong or missing."""

    @property
    def ready(self) -> bool:
        """Whether it can be submitted."""
        return bool(self.submissions)


def check(
    fields: Sequence[FormField],
    texts: Mapping[str, str],
    environments: Sequence[EnvironmentRow],
    folder: Path = Path(),
    more: Mapping[str, Any] = MappingProxyType({}),
) -> Checked:
    """Look at a form. ``environments``: those that are served, empty where no engine has looked for any; ``folder``:
    where a relative folder of a base counts from; ``more``: what the task file says that no field has."""
    table = joined(table_of(fields, texts), more)
    problems = {}
    for entry in fields:
        text = texts.get(entry.key, "")
        if text.strip() and (sentence := _alone(entry, read(entry, text))):
            problems[entry.key] = sentence
    given = {"environment"} if more.get("mixture") else set()
    missing = frozenset(e.key for e in fields if e.required and not texts.get(e.key, "").strip()) - given
    try:
        source = written(table)
    except ConfigError as error:
        return Checked(problems or {"": str(error)}, missing)
    if problems or missing:
        return Checked(problems, missing, source)
    try:
        submissions = taskfile.tasks_of(table, WHERE, folder, source)
    except ConfigError as error:
        return Checked(_by_field(error, fields, texts), missing, source)
    for submission in submissions if environments else ():
        try:
            check_environment(submission, list(environments))
        except ConfigError as error:
            return Checked(_by_field(error, fields, texts), missing, source)
    return Checked({}, missing, source, tuple(submissions))


def first_wrong(checked: Checked, fields: Sequence[FormField]) -> str:
    """The key of the first field, from the top of the form, that is wrong or missing; empty where there is none."""
    keys = {*checked.problems, *checked.missing}
    return next((entry.key for entry in sorted(fields, key=_height) if entry.key in keys), "")


def _height(entry: FormField) -> tuple[int, int]:
    """Where a field stands in the form; of fields at one height the order is that of the task file."""
    if entry.key in FIRST:
        return 0, FIRST.index(entry.key)
    if entry.table == PARAMETERS:
        return 1, 0
    if entry.kind == NAMES or entry.table == AGENTS or entry.table.startswith(f"{POLICIES}."):
        return 2, 0
    return 3, FOLDED.index(entry.table)


def _alone(entry: FormField, value: Any) -> str:
    """What is wrong with one field, whatever the others hold; empty where it is fine."""
    if entry.table == PARAMETERS or entry.kind == NAMES:
        return ""  # the environment, or the rules of policies, say this once the whole task is checked
    for one in value.values if isinstance(value, Several) else (value,):
        table: dict[str, Any] = {**_STANDING}
        place(table, entry)[entry.name] = one
        try:
            build(TaskSpec, table, WHERE)
        except ConfigError as error:
            return _plain(error)
    return ""


def _by_field(error: ConfigError, fields: Sequence[FormField], texts: Mapping[str, str]) -> dict[str, str]:
    """The mistakes by the fields that show them; of one field the first."""
    found: dict[str, str] = {}
    for mistake in error.mistakes:
        found.setdefault(_field_of(mistake.path, fields, texts), _plain(mistake))
    return found


def _plain(error: ConfigError) -> str:
    return f"{error.cause} {error.hint}".strip()


def _field_of(path: str, fields: Sequence[FormField], texts: Mapping[str, str]) -> str:
    """The field that shows a key of a task file: its own, that of the table it is in, or for a table one that was
    filled in; empty where there is none."""
    keys, wanted = [entry.key for entry in fields], path
    while path and path not in keys:
        path = path.rpartition(".")[0]
    filled = (key for key in keys if wanted and key.startswith(f"{wanted}.") and texts.get(key, "").strip())
    return path or next(filled, "")
