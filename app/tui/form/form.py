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

from marlaas.engine.environments.files import plugin_paths
from marlaas.engine.errors import ConfigError, MarlaasError
from marlaas.engine.home.paths import BUNDLED_PLUGINS, Home
from marlaas.engine.home.settings import load_settings
from marlaas.engine.queue.submission import taskfile
from marlaas.engine.queue.submission.queue import check_environment, find_environment
from marlaas.engine.spec.fields import REQUIRED, SpecField, spec_fields
from marlaas.engine.spec.losses import published
from marlaas.engine.spec.task import BASE, NamedPolicySpec, TaskSpec
from marlaas.engine.spec.validation import CONFLICT, MISSING
from marlaas.engine.store.queries import learning
from marlaas.engine.store.queries.learning import KeptVersion
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import EnvironmentRow, VersionRow
from marlaas.engine.store.submissions import Submission

from ...lists.filters import short_names
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


def of_environments(rows: Sequence[EnvironmentRow], plugins: Iterable[str]) -> tuple[Choice, ...]:
    """Environments with state and description, working ones first; without an engine only plugin names."""
    shown = [row for row in rows if row.state != "hidden"]
    names = short_names([row.name for row in shown])
    choices = [Choice(names[row.name], _of_environment(row), _STATES.get(row.state, BAD)) for row in shown]
    choices.sort(key=lambda choice: (GOOD, DOUBTFUL, BAD).index(choice.standing))
    return tuple(choices) or tuple(Choice(name, "not looked at yet: no engine has run") for name in plugins)


def _of_environment(row: EnvironmentRow) -> str:
    about = f"{row.message}{place_of(row)}" if row.message and row.state != "ready" else row.description
    return line(": ".join(filter(None, (row.state, about))), 200)


def _of_version(kept: KeptVersion) -> Choice:
    row, label = kept.row, f"{kept.label}, " if kept.label else ""
    note = f"{label}held-out {score(row.score)}: {row.tenant} / {row.task_name}, on {kept.environment}"
    return Choice(reference(row), line(note, 200), GOOD)


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
FOLDED = ("train", "sampling", "eval", "policy", "data", "queue", "keep", "watch", "track", "")
"""In order; the last has the file's other keys."""
POLICIES, AGENTS = "policies", "agents"
"""Fields of these names hold names, and so decide the form's other fields."""
NAMES = "names"


@dataclass(frozen=True)
class FormField(SpecField):
    """One line of the form; its kind may also be json, names or agent."""

    required: bool = False

    @property
    def table(self) -> str:
        return AGENTS if self.key.startswith(f"{AGENTS}.") else super().table

    @property
    def name(self) -> str:
        return self.key.removeprefix(f"{self.table}.")

    @property
    def path(self) -> tuple[str, ...]:
        return (*(self.table.split(".", 1) if self.table else ()), self.name)

    @property
    def typed_default(self) -> str:
        """Empty: none."""
        return "" if self.required else shown(self.default)

    @property
    def allowed(self) -> str:
        """For example 1 to 512."""
        words = _ALLOWED.get(self.kind, "")
        if self.choices:
            words = ", ".join(self.choices)
        elif self.kind == "list" and self.low is not None:
            words = "numbers or names, with commas"
        elif self.low is not None and self.high is not None:
            words = f"{_bound(self.low)} to {_bound(self.high)}"
        elif self.low is not None or self.high is not None:
            words = f"at most {_bound(self.high)}" if self.low is None else f"at least {_bound(self.low)}"
        return f"{words}, or auto" if self.auto else words


_ALLOWED = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "json": "JSON",
    NAMES: "names, with commas",
    "agent": "one of the policies",
}
NAME_FIELDS = (
    FormField(
        POLICIES,
        NAMES,
        None,
        "Instead of [policy]: several, each with an adapter of its own, frozen, or a pool of earlier versions.",
    ),
    FormField(AGENTS, NAMES, None, "The agents of the environment; one that declares them needs no names here."),
)
"""The two fields that hold names."""


@cache
def task_fields() -> tuple[FormField, ...]:
    """The fields of every task."""
    return tuple(FormField(**vars(field), required=field.key in REQUIRED) for field in spec_fields())


def named_fields(policies: Sequence[str], agents: Sequence[str]) -> tuple[FormField, ...]:
    """Fields of several policies: their names, agents' names, each agent's policy, each policy's own fields."""
    speakers = [
        FormField(f"{AGENTS}.{agent}", "agent", None, "Which policy acts as this agent.", required=True)
        for agent in agents
    ]
    own = [
        FormField(**{**vars(field), "key": field.key.replace("NAME", name, 1), "swept": field.kind in ("int", "float")})
        for name in policies
        for field in spec_fields(NamedPolicySpec, "policies.NAME.")
    ]
    return (*NAME_FIELDS, *(speakers if policies else ()), *own)


def parameter_fields(parameters: Sequence[Mapping[str, Any]]) -> tuple[FormField, ...]:
    """Fields of an environment's parameters, from the plugin by way of the store."""
    return tuple(
        FormField(
            f"{PARAMETERS}.{entry['name']}",
            entry["type"],
            entry.get("default"),
            "A parameter of the environment.",
            entry.get("low"),
            entry.get("high"),
            tuple(map(str, entry.get("choices", ()))),
            swept=True,
            required=bool(entry.get("required")),
        )
        for entry in parameters
    )


def shown(value: Any) -> str:
    """A value as typed into a field."""
    match value:
        case None | tuple() if not value:
            return ""
        case bool():
            return str(value).lower()
        case str():
            return value
        case float() if float(f"{value:g}") == value:
            return f"{value:g}"
        case int() | float():
            return str(value)
    return json.dumps(value, ensure_ascii=False)


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
    from marlaas.engine.models.find import SHIPPED, cached_bases

    try:
        with reading(home) as reader:
            environments = tuple(reader.environments()) if reader else ()
            tenants = [task.tenant for task in reversed(reader.tasks())] if reader else []
            table = copied(reader, copy_from) if reader and copy_from is not None else None
            versions = list(learning.kept_versions(reader, learning.kept_marks(reader))) if reader else []
    except MarlaasError as error:
        return Sources(problem=str(error))
    with suppress(KeyError, OSError, ImportError):  # a user without a name, as in some containers
        tenants.append(getpass.getuser())
    bases: tuple[Choice, ...] = ()
    with suppress(MarlaasError):  # settings that cannot be read are shown by whoever submits
        base, others = load_settings(home).base, dict.fromkeys((*SHIPPED, *cached_bases()))
        another = "another base: needs a home of its own (--home)"
        bases = Choice(base, "the base of this home", GOOD), *(Choice(b, another, BAD) for b in others if b != base)
    folders = () if environments else (BUNDLED_PLUGINS, home.plugins)
    plugins = {name for folder in folders for name in plugin_paths(folder)}
    versions.sort(key=lambda each: (each.row.task, each.row.number), reverse=True)  # the newest task first
    return Sources(
        environments,
        of_environments(environments, sorted(plugins)),
        bases,
        tuple(map(_of_version, versions)),
        tuple(dict.fromkeys(tenants)),
        table,
    )


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


# Answers are safe lines; errors are sentences in them, never exceptions.


@dataclass(frozen=True)
class Prompts:
    """The first prompts of an environment."""

    environment: str
    lines: tuple[str, ...] = ()
    parameters: tuple[dict[str, Any], ...] = ()
    """As stored."""


def prospect(home: Home, submissions: Sequence[Submission]) -> tuple[Sequence[tuple[str, str]], str]:
    """The cost of the tasks as (what, amount), or why it is unknown."""
    from ...operations.estimating import estimate_all, told

    try:
        estimates = estimate_all(home, submissions)
    except (MarlaasError, OSError) as error:
        return (), line(str(error))
    return told(estimates, [each.spec.played for each in submissions]), ""


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
    default = f" Default: {line(field.typed_default, 60)}." if field.typed_default else ""
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


def table_of(
    fields: Sequence[FormField], texts: Mapping[str, str], more: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """The table with the typed values, and with what has no field. Sweeps of parameters are in ``[sweep]``."""
    table = deepcopy(dict(more))
    for each in fields:
        text = texts.get(each.key, "")
        if each.kind == NAMES:
            for name in names_in(text) if each.key == POLICIES else ():
                _table(table, (POLICIES, name))
        elif text.strip():
            value = read(each, text)
            if isinstance(value, tuple) and each.table.startswith((PARAMETERS, f"{POLICIES}.")):
                _table(table, ("sweep",))[each.key] = list(value)
            else:
                *inner, name = each.path
                _table(table, inner)[name] = list(value) if isinstance(value, tuple) else value
    return table


def _table(table: dict[str, Any], path: Sequence[str]) -> dict[str, Any]:
    """The table at a path, made if it is missing."""
    for name in path:
        if not isinstance(table.get(name), dict):
            table[name] = {}
        table = table[name]
    return table


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
        if text != each.typed_default:
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
                return {"true": True, "false": False}.get(text.lower(), text)
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
    def _served(self) -> EnvironmentRow | None:
        with suppress(MarlaasError):
            return find_environment(self.texts.get("environment", "").strip(), list(self.sources.environments))
        return None

    @property
    def parameters(self) -> tuple[FormField, ...]:
        if self._served is not None:
            return parameter_fields(self._served.parameters)
        name, parameters = self.looked_up
        return parameter_fields(parameters) if name == self.texts.get("environment", "").strip() else ()

    @property
    def declared(self) -> tuple[str, ...]:
        return self._served.agents if self._served is not None else ()

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
        if field.key == "train.loss":
            return tuple(Choice(loss, published(loss).words) for loss in field.choices)
        if field.kind == "agent":
            return tuple(map(Choice, self.policies))
        if field.table.startswith(f"{POLICIES}."):
            others = [name for name in self.policies if name != field.table.partition(".")[2]]
            starts = (Choice(f"{name}@0", f"what {line(name, 40)} begins as") for name in others)
            own = {
                f"{field.table}.start": versions,
                f"{field.table}.pool": tuple(map(Choice, others)),
                f"{field.table}.frozen": (Choice(BASE, "the bare base"), *starts, *versions),
            }
        values = field.choices or (("true", "false") if field.kind == "bool" else ())
        return own.get(field.key, tuple(map(Choice, values)))

    def typed(self, key: str, text: str, touched: bool = True) -> Form:
        return replace(self, texts={**self.texts, key: text}, touched=touched)

    def taken_over(self, table: Mapping[str, Any], touched: bool = True) -> Form:
        environment = replace(self, texts=texts_of((*task_fields(), *NAME_FIELDS), table))
        fields = environment.fields
        return replace(environment, texts=texts_of(fields, table), more=beyond(fields, table), touched=touched)

    def beginning_with(self, version: VersionRow) -> Form:
        """Of several policies, the version's own begins from it."""
        several = version.policy in self.policies
        key = f"{POLICIES}.{version.policy}.start" if several else "policy.start"
        return self.typed(key, reference(version), self.touched)

    def checked(self) -> Checked:
        return check(self.fields, self.texts, self.sources.environments, Path.cwd(), self.more)


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


def check(
    fields: Sequence[FormField],
    texts: Mapping[str, str],
    environments: Sequence[EnvironmentRow],
    folder: Path = Path(),
    more: Mapping[str, Any] = MappingProxyType({}),
) -> Checked:
    """Check a form by the rules of ``submit``.

    ``environments``: served ones, empty if no engine has looked; ``folder``: root of relative base folders; ``more``:
    the task file's part without fields.
    """
    table, source = table_of(fields, texts, more), ""
    given = {"environment"} if more.get("mixture") else set()
    missing = frozenset(e.key for e in fields if e.required and not texts.get(e.key, "").strip()) - given
    submissions: list[Submission] = []
    problems: dict[str, str] = {}
    try:
        source = written(table)
        whole = {**dict.fromkeys(missing.intersection(REQUIRED), "x"), **table}  # without a name no sweep is read
        submissions = taskfile.tasks_of(whole, "the form", folder, source)
        for submission in submissions if environments and not missing else ():
            check_environment(submission, list(environments))
    except ConfigError as error:
        for mistake in error.mistakes:
            if not missing or mistake.code not in (MISSING, CONFLICT):  # others may only follow from what is missing
                problems.setdefault(_field_of(mistake.path, fields, texts), f"{mistake.cause} {mistake.hint}".strip())
        submissions = []
    return Checked(problems, missing, source, () if missing else tuple(submissions))


def first_wrong(checked: Checked, fields: Sequence[FormField]) -> str:
    """The key of the first wrong or missing field from the top; empty: none."""
    keys = {*checked.problems, *checked.missing}
    return next((entry.key for entry in sorted(fields, key=_height) if entry.key in keys), "")


def _height(entry: FormField) -> tuple[int, int]:
    """Ties follow the task file."""
    if entry.key in FIRST:
        return 0, FIRST.index(entry.key)
    if entry.table in FOLDED and entry.kind != NAMES:
        return 3, FOLDED.index(entry.table)
    return 1 if entry.table == PARAMETERS else 2, 0


def _field_of(path: str, fields: Sequence[FormField], texts: Mapping[str, str]) -> str:
    """Its own, its table's, or for a table a filled one; empty: none."""
    keys, key = {entry.key for entry in fields}, path
    while key and key not in keys:
        key = key.rpartition(".")[0]
    filled = (
        each.key for each in fields if path and each.key.startswith(f"{path}.") and texts.get(each.key, "").strip()
    )
    return key or next(filled, "")
