"""The form as a value: what was typed, the table that it means, and what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from marlaas.engine.errors import ConfigError, MarlaasError
from marlaas.engine.spec import TaskSpec, build
from marlaas.engine.store import EnvironmentRow, Submission, VersionRow
from marlaas.engine.submission import check_environment, find_environment, taskfile

from ..home.references import reference
from ..home.task_text import written
from ..words.format import line
from ..words.policies import names
from .fields import (
    AGENTS,
    FIRST,
    FOLDED,
    NAMES,
    PARAMETERS,
    POLICIES,
    Choice,
    FormField,
    name_fields,
    named_fields,
    of_field,
    parameter_fields,
    players,
    shown,
    task_fields,
)
from .sources import Sources

# What the form says of itself: of a field, and of how it stands. Pure.


def about(field: FormField, chosen: bool = False) -> str:
    """A field in words, for whoever has the cursor on it; ``chosen``: whether there are values to choose from."""
    default = f" Default: {line(field.default, 60)}." if field.default else ""
    listed = " ↑ ↓ and enter choose, ctrl+space lists all." if chosen else ""
    several = " Several values with commas: a task for each." if field.swept else ""
    return f"{line(field.key, 80)}: {field.about}{default}{several}{listed}"


def standing(checked: Checked) -> str:
    """Whether the form can be submitted, and as how many tasks."""
    if checked.problems:
        wrong = len(checked.problems)
        general = line(checked.problems.get("", ""), 60)
        return general or f"{wrong} {'field is' if wrong == 1 else 'fields are'} wrong"
    if checked.missing:
        return f"missing: {missing(checked)}"
    count = len(checked.submissions)
    return f"{count} task{'' if count == 1 else 's'}; ctrl+s submits"


def beyond_fields(form: Form) -> str:
    """A sentence on what the form has no fields for, or that its task could have several policies."""
    if form.more:
        return f"also in the task file: {names([*form.more])}; ctrl+e changes it"
    if len(form.declared) > 1 and not form.policies:
        return f"agents {names(form.declared)}: one policy acts as all; “policies” below can have several"
    return ""


def missing(checked: Checked) -> str:
    """What must be given and is not."""
    return ", ".join(line(key.rpartition(".")[2], 30) for key in sorted(checked.missing))


# Turns what was typed into the form into the table of a task file, and back. Pure.
#
# Several values with commas between them are a sweep. A text that cannot be read as its field's kind stays a text:
# the check of the table then refuses it in its own words.

_WORDS = {"true": True, "false": False}


@dataclass(frozen=True)
class Several:
    """Several values for one key; each makes a task."""

    values: tuple[Any, ...]


def read(field: FormField, text: str) -> Any:
    """The value that a text stands for, or ``Several``; the text itself where it cannot be read."""
    text = text.strip()
    if field.kind == NAMES:
        return names_in(text)
    if field.kind == "list":
        return [int(part) if part.isdecimal() else part for part in _parts(text)]
    if field.swept and _is_list(field, text):
        inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
        if field.kind == "str" and not field.choices:
            try:
                return Several(tuple(json.loads(f"[{inner}]")))
            except ValueError:
                return text
        return Several(tuple(_scalar(field.kind, part) for part in _parts(inner)))
    return _scalar(field.kind, text)


def table_of(fields: Sequence[FormField], texts: Mapping[str, str]) -> dict[str, Any]:
    """The table of a task file with what was typed and nothing else. Sweeps of parameters are in ``[sweep]``."""
    table: dict[str, Any] = {}
    for form_field in fields:
        text = texts.get(form_field.key, "")
        if not text.strip():
            continue
        value = read(form_field, text)
        if form_field.kind == NAMES:
            if form_field.key == POLICIES:
                table[POLICIES] = {name: {} for name in value}
            continue
        if isinstance(value, Several):
            if form_field.table == PARAMETERS or form_field.table.startswith(f"{POLICIES}."):
                table.setdefault("sweep", {})[form_field.key] = list(value.values)
                continue
            value = list(value.values)
        place(table, form_field)[form_field.name] = value
    return table


def place(table: dict[str, Any], field: FormField) -> dict[str, Any]:
    """The table that a field's key is in, which is made where there is none."""
    for name in field.table.split(".", 1) if field.table else ():
        table = table.setdefault(name, {})
    return table


def names_in(text: str) -> tuple[str, ...]:
    """The names in a field of names."""
    return tuple(dict.fromkeys(_parts(text)))


def texts_of(fields: Sequence[FormField], table: Mapping[str, Any]) -> dict[str, str]:
    """The texts that would make a table if typed; values that are the default are left out."""
    sweep = table.get("sweep")
    swept: Mapping[str, Any] = sweep if isinstance(sweep, dict) else {}
    texts = {}
    for form_field in fields:
        if form_field.kind == NAMES:
            if text := _names(form_field.key, table.get(form_field.key)):
                texts[form_field.key] = text
            continue
        inner: Any = table
        for name in form_field.table.split(".", 1) if form_field.table else ():
            inner = inner.get(name) if isinstance(inner, Mapping) else None
        value = swept.get(form_field.key)
        if value is None and isinstance(inner, Mapping):
            value = inner.get(form_field.name)
        text = _typed(form_field, value, form_field.key in swept)
        if text != form_field.default:
            texts[form_field.key] = text
    return texts


def beyond(fields: Sequence[FormField], table: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a table that no field has: mixtures, suites, names that a field cannot hold, and mistakes."""
    named = {field.key for field in fields if field.kind == NAMES}
    keys, tables = {field.key for field in fields} - named, {field.table for field in fields}
    kept: dict[str, Any] = {}
    for key, value in table.items():
        if key == PARAMETERS:
            continue
        if key in named and _names(key, value):
            if value := _beyond_names(key, keys, value):
                kept[key] = value
            continue
        if isinstance(value, Mapping) and (key in tables or key == "sweep"):
            prefix = "" if key == "sweep" else f"{key}."
            value = {name: each for name, each in value.items() if f"{prefix}{name}" not in keys}
            if not value:
                continue
        if key not in keys:
            kept[key] = value
    return kept


def _names(key: str, value: Any) -> str:
    """The names in a table of policies or agents, as one would type them; empty where fields cannot hold it."""
    kind = Mapping if key == POLICIES else str
    if not isinstance(value, Mapping) or not all(isinstance(each, kind) for each in value.values()):
        return ""
    text = ", ".join(map(str, value))
    return text if text.isprintable() and [*names_in(text)] == [*value] else ""


def _beyond_names(key: str, keys: set[str], value: Mapping[str, Any]) -> dict[str, Any]:
    if key == AGENTS:
        return {agent: policy for agent, policy in value.items() if f"{AGENTS}.{agent}" not in keys}
    left = {
        name: {own: each for own, each in policy.items() if f"{POLICIES}.{name}.{own}" not in keys}
        for name, policy in value.items()
    }
    return {name: policy for name, policy in left.items() if policy}


def joined(table: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """A table with what another one says besides."""
    return {
        key: joined(table[key], more[key])
        if key in table and isinstance(table[key], Mapping) and isinstance(more.get(key), Mapping)
        else table.get(key, more.get(key))
        for key in {**table, **more}
    }


def _typed(field: FormField, value: Any, swept: bool) -> str:
    if not isinstance(value, list | tuple) or (field.kind == "json" and not swept):
        return shown(value)
    if field.kind in ("str", "json") and not field.choices:
        return json.dumps(list(value), ensure_ascii=False)
    return ", ".join(map(shown, value))


def _is_list(field: FormField, text: str) -> bool:
    """Whether a text is a list: commas separate numbers and words; lists of free texts and JSON need brackets."""
    if field.kind == "json":
        return False
    bracketed = text.startswith("[") and text.endswith("]")
    return bracketed or ("," in text and (field.kind != "str" or bool(field.choices)))


def _parts(text: str) -> list[str]:
    return [part.strip().strip("\"'") for part in text.split(",") if part.strip()]


def _scalar(kind: str, text: str) -> Any:
    try:
        match kind:
            case "int":
                return int(text)
            case "float":
                return int(text) if text.lstrip("+-").isdecimal() else float(text)
            case "bool":
                return _WORDS.get(text.lower(), text)
            case "json":
                return json.loads(text)
    except ValueError:  # no number, a number of thousands of digits, or no JSON
        return text
    return text


# The form itself, as a value: what was typed, and which fields there are because of it. Pure.


@dataclass(frozen=True)
class Form:
    """A form at one moment."""

    sources: Sources = field(default_factory=Sources)
    texts: Mapping[str, str] = field(default_factory=dict)
    """What was typed, by key."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """What its task file says that no field has."""
    touched: bool = False
    """Whether a person has typed anything."""
    looked_up: tuple[str, tuple[dict[str, Any], ...]] = ("", ())
    """An environment that no engine serves yet, and its parameters."""

    @classmethod
    def begun(cls, sources: Sources) -> Form:
        """A form as it opens: a copy of a task, or empty but for the tenant."""
        if sources.table is not None:
            return cls(sources).taken_over(sources.table, touched=False)
        return cls(sources, {"tenant": sources.tenants[0]} if sources.tenants else {})

    @property
    def parameters(self) -> tuple[FormField, ...]:
        """Fields of the environment that is named; none while there is no such environment."""
        named = self.texts.get("environment", "").strip()
        if not self.sources.environments:
            return parameter_fields(self.looked_up[1]) if named == self.looked_up[0] else ()
        try:
            return parameter_fields(find_environment(named, list(self.sources.environments)).parameters)
        except MarlaasError:
            return ()

    @property
    def declared(self) -> tuple[str, ...]:
        """The agents of the environment that is named, where it is served and declares them."""
        try:
            return find_environment(self.texts.get("environment", "").strip(), list(self.sources.environments)).agents
        except MarlaasError:
            return ()

    @property
    def policies(self) -> tuple[str, ...]:
        """The names of the task's policies, where it has several."""
        return names_in(self.texts.get(POLICIES, ""))

    @property
    def agents(self) -> tuple[str, ...]:
        """The agents that policies act as: those that the environment declares, and those that were named."""
        return tuple(dict.fromkeys((*self.declared, *names_in(self.texts.get(AGENTS, "")))))

    @property
    def named(self) -> tuple[FormField, ...]:
        """Fields of several policies, and of who acts as which agent."""
        return named_fields(self.policies, self.agents)

    @property
    def fields(self) -> tuple[FormField, ...]:
        """All fields of the form."""
        return (*task_fields(), *self.named, *self.parameters)

    def choices(self, field: FormField) -> tuple[Choice, ...]:
        """What may be chosen in a field; nothing where anything may be typed."""
        versions = self.sources.starts
        own = {
            "tenant": tuple(map(Choice, self.sources.tenants)),
            "environment": self.sources.choices,
            "base": self.sources.bases,
            "policy.start": versions,
        }
        if field.key in own:
            return own[field.key]
        if field.table == AGENTS:
            return tuple(map(Choice, self.policies))
        if field.table.startswith(f"{POLICIES}."):
            others = [name for name in self.policies if name != field.table.partition(".")[2]]
            of_policy = {
                "start": versions,
                "pool": tuple(map(Choice, others)),
                "frozen": players(others, versions),
            }
            return of_policy.get(field.name, of_field(field))
        return of_field(field)

    def typed(self, key: str, text: str) -> Form:
        """The form with another text in a field."""
        return replace(self, texts={**self.texts, key: text}, touched=True)

    def taken_over(self, table: Mapping[str, Any], touched: bool = True) -> Form:
        """The form with what a task file says."""
        environment = replace(self, texts=texts_of((*task_fields(), *name_fields()), table))
        fields = environment.fields
        return replace(environment, texts=texts_of(fields, table), more=beyond(fields, table), touched=touched)

    def beginning_with(self, version: VersionRow) -> Form:
        """The form of a task that begins from this version; of several policies, the version's own begins from it."""
        several = version.policy in self.policies
        key = f"{POLICIES}.{version.policy}.start" if several else "policy.start"
        return replace(self.typed(key, reference(version)), touched=self.touched)

    def on(self, environment: str) -> Form:
        """The form of a task on this environment."""
        return replace(self.typed("environment", environment), touched=self.touched)

    def found(self, environment: str, parameters: tuple[dict[str, Any], ...]) -> Form:
        """The form with the parameters of an environment that no engine serves yet."""
        return replace(self, looked_up=(environment, parameters))

    def checked(self) -> Checked:
        """What is wrong with it, and the tasks that it means."""
        known = self.fields
        keys = {entry.key for entry in known}
        strangers = (key for key in self.texts if key.startswith(f"{PARAMETERS}.") and key not in keys)
        texts = {key: text for key, text in self.texts.items() if key not in set(strangers)}
        return check(known, texts, self.sources.environments, Path.cwd(), self.more)


# Checks a form field by field, in the sentences of validation, and lists the tasks that it stands for. Pure.

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
