"""The form of a task file: fields, choices, typed texts, problems."""

from __future__ import annotations

import getpass
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from marlaas.engine.environments.files.source import plugin_paths
from marlaas.engine.errors import ConfigError, MarlaasError
from marlaas.engine.home.paths import BUNDLED_PLUGINS, Home
from marlaas.engine.home.settings import load_settings
from marlaas.engine.queue.submission import taskfile
from marlaas.engine.queue.submission.queue import check_environment, find_environment
from marlaas.engine.spec.fields import REQUIRED, SpecField, spec_fields
from marlaas.engine.spec.losses import published
from marlaas.engine.spec.task import BASE, NamedPolicySpec, TaskSpec
from marlaas.engine.spec.validation import build
from marlaas.engine.store.queries.learning import KeptVersion
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import EnvironmentRow, VersionRow
from marlaas.engine.store.submissions import Submission

from ...operations.commands import reference, without_steps, written
from ...reading import reading
from ...text.environments import place_of
from ...text.format import line, score
from ...text.tasks import names

GOOD, DOUBTFUL, BAD = "good", "doubtful", "bad"
"""State of a choice: works, may not work, does not work."""
MOST = 200
_STATES = {"ready": GOOD, "stale": DOUBTFUL, "failing": DOUBTFUL, "loading": DOUBTFUL, "building": DOUBTFUL}


@dataclass(frozen=True)
class Choice:
    """One value to choose."""

    value: str
    note: str = ""
    """Safe words."""
    standing: str = ""
    """``GOOD``, ``DOUBTFUL``, ``BAD``; empty: unknown."""


def of_environments(rows: Sequence[EnvironmentRow], plugins: Sequence[str]) -> tuple[Choice, ...]:
    """Environments with state and description, working ones first; without an engine only plugin names."""
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
    """Versions on disk, newest task first."""
    newest = sorted(kept, key=lambda each: (each.row.task, each.row.number), reverse=True)
    return tuple(Choice(reference(each.row), _of_version(each), GOOD) for each in newest)


def _of_version(kept: KeptVersion) -> str:
    row, label = kept.row, f"{kept.label}, " if kept.label else ""
    return line(f"{label}held-out {score(row.score)}: {row.tenant} / {row.task_name}, on {kept.environment}", 200)


def of_bases(home_base: str, others: Iterable[str]) -> tuple[Choice, ...]:
    """The home's base, and others that need another home."""
    foreign = (name for name in dict.fromkeys(others) if name != home_base)
    return (
        Choice(home_base, "the base of this home", GOOD),
        *(Choice(name, "another base: needs a home of its own (--home)", BAD) for name in foreign),
    )


def of_field(field: FormField) -> tuple[Choice, ...]:
    """The values that a field itself allows."""
    if field.key == "train.loss":
        return tuple(Choice(loss, published(loss).words) for loss in field.choices)
    return tuple(map(Choice, field.choices or (("true", "false") if field.kind == "bool" else ())))


def players(policies: Sequence[str], versions: Sequence[Choice]) -> tuple[Choice, ...]:
    """Choices for a frozen policy: the bare base, the start of a policy of the task, any version."""
    own = (Choice(f"{name}@0", f"what {line(name, 40)} begins as") for name in policies)
    return (Choice(BASE, "the bare base"), *own, *versions)


def fitting(choices: Sequence[Choice], typed: str) -> list[Choice]:
    """Choices with all typed words in value or note; prefixes first.

    Of comma-separated values only the last counts.
    """
    wanted = _last(typed).casefold()
    words = wanted.split()
    found = [choice for choice in choices if all(word in f"{choice.value} {choice.note}".casefold() for word in words)]
    found.sort(key=lambda choice: not choice.value.casefold().startswith(wanted))
    return found[:MOST]


def taken(typed: str, choice: Choice) -> str:
    """The typed text with the choice as its last value."""
    before, comma, _ = typed.rpartition(",")
    return f"{before}{comma} {choice.value}" if comma else choice.value


def chosen(choices: Sequence[Choice], typed: str) -> Choice | None:
    """The choice typed in full."""
    return next((choice for choice in choices if choice.value == _last(typed)), None)


def _last(typed: str) -> str:
    return typed.rpartition(",")[2].strip()


PARAMETERS = "environment_config"
FIRST = ("tenant", "name", "environment", "steps")
FOLDED = ("train", "sampling", "eval", "policy", "data", "queue", "keep", "watch", "")
"""In order; the last has the file's other keys."""
POLICIES, AGENTS = "policies", "agents"
"""Fields of these names hold names, and so decide the form's other fields."""
NAMES = "names"


@dataclass(frozen=True)
class FormField:
    """One line of the form."""

    key: str
    """Dotted, as in a task file: train.learning_rate."""
    kind: str
    """int, float, str, bool, json, list or names"""
    default: str
    """As typed; empty: none."""
    allowed: str
    """For example 1 to 512."""
    about: str = ""
    choices: tuple[str, ...] = ()
    swept: bool = False
    """True: several values make one task each."""
    required: bool = False

    @property
    def table(self) -> str:
        """Table of its key; empty for keys of the file itself."""
        return AGENTS if self.key.startswith(f"{AGENTS}.") else self.key.rpartition(".")[0]

    @property
    def name(self) -> str:
        return self.key.removeprefix(f"{self.table}.")

    @property
    def path(self) -> tuple[str, ...]:
        return (*(self.table.split(".", 1) if self.table else ()), self.name)


@cache
def task_fields() -> tuple[FormField, ...]:
    """The fields of every task."""
    return tuple(_field(field, field.key, field.swept) for field in spec_fields())


def named_fields(policies: Sequence[str], agents: Sequence[str]) -> tuple[FormField, ...]:
    """Fields of several policies: their names, agents' names, each agent's policy, each policy's own fields."""
    own = (
        _field(field, field.key.replace("NAME", name, 1), field.kind in ("int", "float"))
        for name in policies
        for field in spec_fields(NamedPolicySpec, "policies.NAME.")
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
    """Fields of an environment's parameters, from the plugin by way of the store."""
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
    """A value as typed into a field."""
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
    """Whole numbers without exponent, digits in groups of three."""
    return f"{bound:,.0f}" if bound is not None and float(bound).is_integer() else shown(bound)


@dataclass(frozen=True)
class Sources:
    """What a form is filled from."""

    environments: tuple[EnvironmentRow, ...] = ()
    choices: tuple[Choice, ...] = ()
    """Without an engine, plugins."""
    bases: tuple[Choice, ...] = ()
    starts: tuple[Choice, ...] = ()
    tenants: tuple[str, ...] = ()
    """Last submitter first."""
    table: dict[str, Any] | None = None
    problem: str = ""


def read_sources(home: Home, copy_from: int | None) -> Sources:
    """Read the sources; an unreadable home gives a ``problem``."""
    try:
        with reading(home) as reader:
            environments = tuple(reader.environments()) if reader else ()
            tenants = _tenants(reader)
            table = copied(reader, copy_from) if reader and copy_from is not None else None
            starts = of_versions(reader.kept_versions(reader.kept_marks())) if reader else ()
    except MarlaasError as error:
        return Sources(problem=str(error))
    choices = of_environments(environments, _plugins(home) if not environments else ())
    return Sources(environments, choices, _bases(home), starts, tenants, table)


def _bases(home: Home) -> tuple[Choice, ...]:
    from marlaas.engine.models.find import SHIPPED, cached_bases

    with suppress(MarlaasError):  # settings that cannot be read are shown by whoever submits
        return of_bases(load_settings(home).base, (*SHIPPED, *cached_bases()))
    return ()


def copied(reader: Reader, task: int) -> dict[str, Any] | None:
    """The task's original table, without defaults; for a sweep's member, its own."""
    row, config = reader.task(task), reader.task_config(task)
    if row is None:
        return None
    source = reader.task_source(task)
    if source and not row.family:
        with suppress(ConfigError):
            return taskfile.table_of(source, "the task file")
    return _said(without_steps(config), asdict(TaskSpec("", "", "")))


def _said(table: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    kept = {}
    for key, value in table.items():
        usual = defaults.get(key)
        if isinstance(value, dict) and isinstance(usual, dict):
            value = _said(value, usual)
        if value not in (usual, None, {}, []):
            kept[key] = value
    return kept


def _tenants(reader: Reader | None) -> tuple[str, ...]:
    known = [task.tenant for task in reversed(reader.tasks())] if reader else []
    with suppress(KeyError, OSError, ImportError):  # a user without a name, as in some containers
        known.append(getpass.getuser())
    return tuple(dict.fromkeys(known))


def _plugins(home: Home) -> tuple[str, ...]:
    found = {name for folder in (BUNDLED_PLUGINS, home.plugins) for name in plugin_paths(folder)}
    return tuple(sorted(found))


# Answers are safe lines; errors are sentences in them, never exceptions.


@dataclass(frozen=True)
class Prospect:
    """The cost of the tasks."""

    rows: tuple[tuple[str, str], ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class Prompts:
    """The first prompts of an environment."""

    environment: str
    lines: tuple[str, ...] = ()
    parameters: tuple[dict[str, Any], ...] = ()
    """As stored."""


def prospect(home: Home, submissions: Sequence[Submission]) -> Prospect:
    """Estimate the cost of the tasks."""
    from ...operations.estimating import estimate_all, told

    try:
        estimates = estimate_all(home, submissions)
    except (MarlaasError, OSError) as error:
        return Prospect(problem=line(str(error)))
    return Prospect(tuple(told(estimates, [each.spec.played for each in submissions])))


def prompts(home: Home, environment: str, config: dict[str, Any], data: dict[str, Any] | None = None) -> Prompts:
    """The first prompts, with ``data`` in place of own rows; takes a second."""
    from ...operations.environments.peeking import peeked, prompt_lines

    problem = ""
    try:
        try:
            peek = peeked(home, environment, config, data=data)
        except ConfigError as error:  # the parameters are wrong, but which ones there are can still be known
            problem = str(error)
            peek = peeked(home, environment, {}, count=0)
    except (MarlaasError, OSError) as error:
        return Prompts(environment, (line(str(error)),))
    shown = []
    for number, ask in enumerate(peek.asks, 1):
        shown += [f"{number}.", *prompt_lines(ask), ""]
    if problem := problem or peek.problem:
        shown.append(line(problem))
    return Prompts(environment, tuple(shown), tuple(asdict(parameter) for parameter in peek.info.parameters))


def about(field: FormField, chosen: bool = False) -> str:
    """Describe a field; ``chosen``: it has choices."""
    default = f" Default: {line(field.default, 60)}." if field.default else ""
    listed = " ↑ ↓ and enter choose, ctrl+space lists all." if chosen else ""
    several = " Several values with commas: a task for each." if field.swept else ""
    return f"{line(field.key, 80)}: {field.about}{default}{several}{listed}"


def standing(checked: Checked) -> str:
    """If the form can be submitted, and as how many tasks."""
    if checked.problems:
        wrong = len(checked.problems)
        general = line(checked.problems.get("", ""), 60)
        return general or f"{wrong} {'field is' if wrong == 1 else 'fields are'} wrong"
    if checked.missing:
        return f"missing: {missing(checked)}"
    count = len(checked.submissions)
    return f"{count} task{'' if count == 1 else 's'}; ctrl+s submits"


def beyond_fields(form: Form) -> str:
    """A sentence on content without fields, or on several policies."""
    if form.more:
        return f"also in the task file: {names([*form.more])}; ctrl+e changes it"
    if len(form.declared) > 1 and not form.policies:
        return f"agents {names(form.declared)}: one policy acts as all; “policies” below can have several"
    return ""


def missing(checked: Checked) -> str:
    """Required but missing keys."""
    return ", ".join(line(key.rpartition(".")[2], 30) for key in sorted(checked.missing))


# Comma-separated values are a sweep. Unreadable text stays text: the table's check refuses it.

_WORDS = {"true": True, "false": False}


def read(field: FormField, text: str) -> Any:
    """The text's value, or a tuple of several; the text itself if unreadable."""
    text = text.strip()
    if field.kind == "list":
        return [int(part) if part.isdecimal() else part for part in _parts(text)]
    if field.swept and _is_list(field, text):
        inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
        if field.kind == "str" and not field.choices:
            try:
                return tuple(json.loads(f"[{inner}]"))
            except ValueError:
                return text
        return tuple(_scalar(field.kind, part) for part in _parts(inner))
    return _scalar(field.kind, text)


def table_of(fields: Sequence[FormField], texts: Mapping[str, str]) -> dict[str, Any]:
    """The table with only the typed values. Sweeps of parameters are in ``[sweep]``."""
    table: dict[str, Any] = {}
    for each in fields:
        text = texts.get(each.key, "")
        if each.kind == NAMES:
            for name in names_in(text) if each.key == POLICIES else ():
                table.setdefault(POLICIES, {}).setdefault(name, {})
        elif text.strip():
            value = read(each, text)
            if isinstance(value, tuple) and each.table.startswith((PARAMETERS, f"{POLICIES}.")):
                table.setdefault("sweep", {})[each.key] = list(value)
            else:
                _put(table, each, list(value) if isinstance(value, tuple) else value)
    return table


def _put(table: dict[str, Any], field: FormField, value: Any) -> None:
    *inner, name = field.path
    for each in inner:
        table = table.setdefault(each, {})
    table[name] = value


def names_in(text: str) -> tuple[str, ...]:
    """The names in a field of names."""
    return tuple(dict.fromkeys(_parts(text)))


def texts_of(fields: Sequence[FormField], table: Mapping[str, Any]) -> dict[str, str]:
    """Texts that make this table; default values are left out."""
    swept = table.get("sweep")
    swept = swept if isinstance(swept, Mapping) else {}
    texts = {}
    for each in fields:
        value: Any = table
        for name in each.path:
            value = value.get(name) if isinstance(value, Mapping) else None
        text = (
            _names(each.key, value)
            if each.kind == NAMES
            else _typed(each, swept.get(each.key, value), each.key in swept)
        )
        if text != each.default:
            texts[each.key] = text
    return texts


def beyond(fields: Sequence[FormField], table: Mapping[str, Any]) -> dict[str, Any]:
    """The table's part without fields: mixtures, suites, unsuitable names, mistakes."""
    rest = deepcopy(dict(table))
    rest.pop(PARAMETERS, None)
    for each in fields:
        if each.kind != NAMES:
            _drop(rest, each.path)
            _drop(rest, ("sweep", each.key))
    return rest


def _drop(table: dict[str, Any], path: Sequence[str]) -> None:
    name, *inner = path
    if not inner:
        table.pop(name, None)
    elif isinstance(table.get(name), dict):
        _drop(table[name], inner)
        if not table[name]:
            del table[name]


def _names(key: str, value: Any) -> str:
    """Empty if fields cannot hold them."""
    kind = Mapping if key == POLICIES else str
    if not isinstance(value, Mapping) or not all(isinstance(each, kind) for each in value.values()):
        return ""
    text = ", ".join(map(str, value))
    return text if text.isprintable() and [*names_in(text)] == [*value] else ""


def joined(table: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """A table extended by another."""
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
    """Commas separate numbers and words; lists of free texts and JSON need brackets."""
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


@dataclass(frozen=True)
class Form:
    """A form at one moment."""

    sources: Sources = field(default_factory=Sources)
    texts: Mapping[str, str] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)
    """The task file's part without fields."""
    touched: bool = False
    looked_up: tuple[str, tuple[dict[str, Any], ...]] = ("", ())
    """An environment not served yet, and its parameters."""

    @classmethod
    def begun(cls, sources: Sources) -> Form:
        """A copy of a task, or empty but for the tenant."""
        if sources.table is not None:
            return cls(sources).taken_over(sources.table, touched=False)
        return cls(sources, {"tenant": sources.tenants[0]} if sources.tenants else {})

    @property
    def parameters(self) -> tuple[FormField, ...]:
        named = self.texts.get("environment", "").strip()
        if not self.sources.environments:
            return parameter_fields(self.looked_up[1]) if named == self.looked_up[0] else ()
        try:
            return parameter_fields(find_environment(named, list(self.sources.environments)).parameters)
        except MarlaasError:
            return ()

    @property
    def declared(self) -> tuple[str, ...]:
        try:
            return find_environment(self.texts.get("environment", "").strip(), list(self.sources.environments)).agents
        except MarlaasError:
            return ()

    @property
    def policies(self) -> tuple[str, ...]:
        return names_in(self.texts.get(POLICIES, ""))

    @property
    def agents(self) -> tuple[str, ...]:
        """Declared and named ones."""
        return tuple(dict.fromkeys((*self.declared, *names_in(self.texts.get(AGENTS, "")))))

    @property
    def named(self) -> tuple[FormField, ...]:
        return named_fields(self.policies, self.agents)

    @property
    def fields(self) -> tuple[FormField, ...]:
        return (*task_fields(), *self.named, *self.parameters)

    def choices(self, field: FormField) -> tuple[Choice, ...]:
        """A field's choices; none: free text."""
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
        return replace(self, texts={**self.texts, key: text}, touched=True)

    def taken_over(self, table: Mapping[str, Any], touched: bool = True) -> Form:
        environment = replace(self, texts=texts_of((*task_fields(), *name_fields()), table))
        fields = environment.fields
        return replace(environment, texts=texts_of(fields, table), more=beyond(fields, table), touched=touched)

    def beginning_with(self, version: VersionRow) -> Form:
        """Of several policies, the version's own begins from it."""
        several = version.policy in self.policies
        key = f"{POLICIES}.{version.policy}.start" if several else "policy.start"
        return replace(self.typed(key, reference(version)), touched=self.touched)

    def on(self, environment: str) -> Form:
        return replace(self.typed("environment", environment), touched=self.touched)

    def found(self, environment: str, parameters: tuple[dict[str, Any], ...]) -> Form:
        return replace(self, looked_up=(environment, parameters))

    def checked(self) -> Checked:
        known = self.fields
        keys = {entry.key for entry in known}
        strangers = (key for key in self.texts if key.startswith(f"{PARAMETERS}.") and key not in keys)
        texts = {key: text for key, text in self.texts.items() if key not in set(strangers)}
        return check(known, texts, self.sources.environments, Path.cwd(), self.more)


WHERE = "the form"
_STANDING = {"tenant": "t", "name": "n", "environment": "e"}
"""Values for the other required keys, to check one key separately."""


@dataclass(frozen=True)
class Checked:
    """The result of checking a form."""

    problems: Mapping[str, str] = field(default_factory=dict)
    """By key; "": of no field."""
    missing: frozenset[str] = frozenset()
    """Required but absent; no mistake yet."""
    text: str = ""
    submissions: tuple[Submission, ...] = ()
    """None while anything is wrong or missing."""

    @property
    def ready(self) -> bool:
        return bool(self.submissions)


def check(
    fields: Sequence[FormField],
    texts: Mapping[str, str],
    environments: Sequence[EnvironmentRow],
    folder: Path = Path(),
    more: Mapping[str, Any] = MappingProxyType({}),
) -> Checked:
    """Check a form. ``environments``: served ones, empty if no engine has looked; ``folder``: root of relative base
    folders; ``more``: the task file's part without fields."""
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
    """The key of the first wrong or missing field from the top; empty: none."""
    keys = {*checked.problems, *checked.missing}
    return next((entry.key for entry in sorted(fields, key=_height) if entry.key in keys), "")


def _height(entry: FormField) -> tuple[int, int]:
    """Ties follow the task file."""
    if entry.key in FIRST:
        return 0, FIRST.index(entry.key)
    if entry.table == PARAMETERS:
        return 1, 0
    if entry.kind == NAMES or entry.table == AGENTS or entry.table.startswith(f"{POLICIES}."):
        return 2, 0
    return 3, FOLDED.index(entry.table)


def _alone(entry: FormField, value: Any) -> str:
    """Its problem whatever the others hold; empty: fine."""
    if entry.table == PARAMETERS or entry.kind == NAMES:
        return ""  # the environment, or the rules of policies, say this once the whole task is checked
    for each in value if isinstance(value, tuple) else (value,):
        table: dict[str, Any] = {**_STANDING}
        _put(table, entry, each)
        try:
            build(TaskSpec, table, WHERE)
        except ConfigError as error:
            return _plain(error)
    return ""


def _by_field(error: ConfigError, fields: Sequence[FormField], texts: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for mistake in error.mistakes:
        found.setdefault(_field_of(mistake.path, fields, texts), _plain(mistake))
    return found


def _plain(error: ConfigError) -> str:
    return f"{error.cause} {error.hint}".strip()


def _field_of(path: str, fields: Sequence[FormField], texts: Mapping[str, str]) -> str:
    """Its own, its table's, or for a table a filled one; empty: none."""
    keys, wanted = [entry.key for entry in fields], path
    while path and path not in keys:
        path = path.rpartition(".")[0]
    filled = (key for key in keys if wanted and key.startswith(f"{wanted}.") and texts.get(key, "").strip())
    return path or next(filled, "")
