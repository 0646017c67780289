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
from .fields import PARAMETERS, FormField
from .texts import Several, joined, read, table_of

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
        return Checked(_by_field(error, fields), missing, source)
    for submission in submissions if environments else ():
        try:
            check_environment(submission, list(environments))
        except ConfigError as error:
            return Checked(_by_field(error, fields), missing, source)
    return Checked({}, missing, source, tuple(submissions))


def _alone(entry: FormField, value: Any) -> str:
    """What is wrong with one field, whatever the others hold; empty where it is fine."""
    if entry.table == PARAMETERS:
        return ""  # the environment says this itself once the whole task is checked
    for one in value.values if isinstance(value, Several) else (value,):
        table = {**_STANDING, **({entry.table: {entry.name: one}} if entry.table else {entry.name: one})}
        try:
            build(TaskSpec, table, WHERE)
        except ConfigError as error:
            return _plain(error)
    return ""


def _by_field(error: ConfigError, fields: Sequence[FormField]) -> dict[str, str]:
    """The mistakes by the fields that show them; of one field the first."""
    found: dict[str, str] = {}
    for mistake in error.mistakes:
        found.setdefault(_field_of(mistake.path, fields), _plain(mistake))
    return found


def _plain(error: ConfigError) -> str:
    return f"{error.cause} {error.hint}".strip()


def _field_of(path: str, fields: Sequence[FormField]) -> str:
    """The field that shows a key of a task file: its own, or that of the table it is in; empty where there is none."""
    keys = {entry.key for entry in fields}
    while path and path not in keys:
        path = path.rpartition(".")[0]
    return path
