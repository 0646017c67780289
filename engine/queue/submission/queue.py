"""Checks a submission against the served environments and its rows."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import ConfigError, EnvironmentMissing, Mistakes, as_one
from ...home.paths import Home
from ...home.settings import load_settings
from ...models.find import load_base
from ...spec.rules import check_declared, data_tables
from ...spec.task import components_of, parse
from ...spec.validation import CHOICE, MISSING, REFUSED, UNKNOWN, nearest
from ...store.queries.reader import Reader
from ...store.rows import FINISHED, BoundTask, EnvironmentRow
from ...store.submissions import Submission
from .taskfile import distinct, environments_of, of_submission, rows_named

# Checks a task file's rows, without the environment's process.


def check_data(submissions: Sequence[Submission]) -> None:
    """Raise ``ConfigError`` with the tasks and the reasons if their rows or columns are missing.

    Of JSON lines the first row is read. Other files are read only by the environment's process, which has the libraries
    for it.
    """
    seen: set[str] = set()
    mistakes = Mistakes()
    for submission in submissions:
        for table, data in data_tables(parse(submission.config, submission.name)):
            record = data.record
            if record is None or repr(record) in seen:
                continue
            seen.add(repr(record))
            if says := missing_rows(record):
                hint = "Relative paths count from the folder of the task file."
                found = ConfigError(says, hint, where=submission.name, path=f"{table}.path", code=REFUSED)
                mistakes.found += of_submission(found, submission)
    mistakes.refuse()


def missing_rows(record: Mapping[str, Any]) -> str:
    """Why ``record`` leads to no rows, in a sentence; empty if nothing is wrong as far as can be seen.

    ``record``: in the form of ``plugins.data.Source.record``.
    """
    from marlaas.plugins.data import Source, first_row  # imported only if a task names rows

    source = Source.of(record)
    for split in ("train", "eval"):
        try:
            first_row(source, split)
        except (ValueError, OSError) as error:
            return f"no rows for {split!r}: {error}."  # the other split most likely has the same reason
    return ""


# Checks a submission against the served environments. Pure decisions.

PARAMETERS = "environment_config"


def find_environment(name: str, environments: list[EnvironmentRow], path: str = "environment") -> EnvironmentRow:
    """The environment of a task file, by "plugin/environment" or only its last part.

    A plugin that has not served yet stands for all environments of its name. Raises ``EnvironmentMissing`` if none or
    several match.
    """
    matches = [e for e in environments if e.name == name] or [
        e for e in environments if e.name.rpartition("/")[2] == name
    ]
    plugin = name.partition("/")[0]
    matches = [e for e in matches if e.version] or matches  # serving ones go first
    matches = matches or [e for e in environments if not e.version and e.name.partition("/")[0] == plugin][:1]
    if len(matches) == 1:
        return matches[0]
    if matches:
        choices = ", ".join(e.name for e in matches)
        says = f"The environment name {name!r} is ambiguous: {choices}."
        raise EnvironmentMissing(says, "Write the whole name.", path=path, code=CHOICE)
    known = sorted({e.name.rpartition("/")[2] for e in environments} | {e.name for e in environments if "/" in name})
    raise EnvironmentMissing(
        f"There is no environment {name!r}.",
        nearest(name, known) if known else "`marlaas env new NAME` writes one.",
        path=path,
        code=CHOICE,
    )


def check_environments(submissions: Sequence[Submission], environments: list[EnvironmentRow]) -> None:
    """``check_environment`` of each.

    Raises ``ConfigError`` with all mistakes, each with its task or its place in a file.
    """
    mistakes: list[ConfigError] = []
    for submission in submissions:
        try:
            check_environment(submission, environments)
        except ConfigError as error:
            own = of_submission(error, submission)
            named = len(submissions) > 1 and not submission.file
            mistakes += [mistake.at(submission.name) for mistake in own] if named else own
    if mistakes:
        raise as_one(distinct(mistakes))


def check_environment(submission: Submission, environments: list[EnvironmentRow]) -> None:
    """Refuse a submission with impossible environments or configurations.

    Raises ``EnvironmentMissing`` or ``ConfigError``, with all mistakes. A broken environment is allowed: the task waits
    for its repair.
    """
    config = submission.config
    mixed = bool(config.get("mixture"))
    declares = config.get("policies") or config.get("kind") == "eval"
    mistakes = Mistakes()
    for place, one in enumerate(environments_of(submission)):
        with mistakes:
            path = f"mixture[{place}].environment" if mixed else "environment"
            found = find_environment(one.name, environments, path)
            with mistakes:
                _check_parameters(found, one.config, f"mixture[{place}].config" if mixed else PARAMETERS)
            with mistakes:
                _check_rows(found, one.data is not None, f"mixture[{place}].data" if mixed else "data")
            with mistakes:
                _check_sampling(found, config.get("train", {}).get("sampling", ""))
            if found.version and declares:
                check_declared(list(components_of(parse(config, submission.name)).values())[place], found.agents)
    for place, suite in enumerate(config.get("eval", {}).get("suite", ())):
        with mistakes:
            as_task = suite["environment"] == submission.environment and rows_named(config) is not None
            _check_suite(f"eval.suite[{place}]", suite, environments, rows_named(suite) is not None or as_task)
    mistakes.refuse()


def _check_suite(table: str, suite: Mapping[str, Any], environments: list[EnvironmentRow], named: bool) -> None:
    mistakes = Mistakes()
    with mistakes:
        other = find_environment(suite["environment"], environments)
        with mistakes:
            _check_parameters(other, suite["config"], f"{table}.config")
        _check_rows(other, named, f"{table}.data")
    for place, mistake in enumerate(mistakes.found):
        says = f"The suite {suite['name']!r}: {mistake.cause}"
        path = mistake.path if mistake.path.startswith(table) else f"{table}.environment"
        mistakes.found[place] = type(mistake)(says, mistake.hint, path=path, code=mistake.code)
    mistakes.refuse()


def _check_parameters(found: EnvironmentRow, config: dict[str, Any], table: str) -> None:
    if not found.version:
        return
    parameters = {p["name"]: p for p in found.parameters}
    mistakes = Mistakes()
    for key, value in config.items():
        with mistakes:
            if key not in parameters:
                says = f"The environment {found.name!r} has no parameter {key!r}."
                raise ConfigError(says, nearest(key, list(parameters)), path=f"{table}.{key}", code=UNKNOWN)
            _check_value(parameters[key], value, found.name, table)
    missing = [name for name, p in parameters.items() if p.get("required") and name not in config]
    with mistakes:
        if missing:
            says = f"The environment {found.name!r} needs {', '.join(missing)} in [{table}]."
            raise ConfigError(says, path=f"{table}.{missing[0]}", code=MISSING)
    mistakes.refuse()


def _check_rows(found: EnvironmentRow, named: bool, table: str = "data") -> None:
    if not found.version:
        return
    if named and not found.rows:
        says = f"The environment {found.name!r} draws its tasks from no rows, so '{table}.path' would have no effect."
        raise ConfigError(says, path=f"{table}.path", code=REFUSED)
    if not named and found.rows == "task":
        says = f"The environment {found.name!r} has no rows of its own."
        written = re.sub(r"\[\d+\]", "", table)
        below = f"[{written}]" if table == "data" else f"[{written}], behind its own table"
        raise ConfigError(says, f"Name some as 'path' below {below}.", path=f"{table}.path", code=MISSING)


def _check_sampling(found: EnvironmentRow, sampling: str) -> None:
    if found.version and not found.rows and sampling == "difficulty":
        says = (
            f"The environment {found.name!r} draws its tasks from no rows, so 'train.sampling' has none to choose from."
        )
        raise ConfigError(says, "Leave 'train.sampling' out.", path="train.sampling", code=REFUSED)


def _check_value(stored: dict[str, Any], value: Any, owner: str, table: str) -> None:
    from marlaas.plugins.parameters import Parameter, checked  # imported only if a parameter is set

    parameter = Parameter(**{**stored, "choices": tuple(stored.get("choices", ()))})
    try:
        checked(parameter, value, owner)
    except ValueError as error:
        raise ConfigError(str(error), path=f"{table}.{parameter.name}", code=REFUSED) from None


NAMED = 3
"""Most tasks that an error names; of more it gives the number."""


@dataclass(frozen=True)
class HomeBase:
    """The base of a home."""

    name: str
    fingerprint: str


def settled_base(home: Home) -> HomeBase:
    """The base in the home's settings. Raises ``ConfigError`` if it cannot be used."""
    name = load_settings(home).base
    return HomeBase(name, load_base(name).fingerprint)


def foreign_tasks(tasks: Iterable[BoundTask], fingerprint: str, unknown: str | None) -> list[BoundTask]:
    """The tasks that belong to another base than ``fingerprint``.

    ``unknown`` is the fingerprint assumed for tasks without a recorded one; with None these are foreign.
    """
    return [task for task in tasks if (task.base or unknown) != fingerprint]


def check_use(home: Home, base: HomeBase, unknown: str | None) -> None:
    """Refuse ``base`` as the home's base if tasks or adapters belong to another. Raises ``ConfigError``."""
    foreign = _foreign(home, base, unknown)
    if foreign:
        raise ConfigError(
            f"the base cannot become {base.name!r}: {_belong(foreign, base)}.",
            f"Either use another home for it (`{_elsewhere(base.name)}`), or {_finish(foreign)}.",
            where=str(home.root),
        )


def check_serve(home: Home, base: HomeBase) -> None:
    """Refuse to serve ``base`` if tasks or adapters of the home belong to another. Raises ``ConfigError``."""
    foreign = _foreign(home, base, base.fingerprint)
    if foreign:
        source = "MARLAAS_BASE" if os.environ.get("MARLAAS_BASE") else home.config.name
        raise ConfigError(
            f"{source} names the base {base.name!r}, but {_belong(foreign, base)}.",
            f"Either use another home for it (`{_elsewhere(base.name)}`), or {_back(foreign, base, source)} and"
            f" {_finish(foreign)}.",
        )


def check_bases(submissions: Sequence[Submission], base: HomeBase) -> None:
    """Refuse tasks with another base than the home's. Raises ``ConfigError``."""
    mistakes = Mistakes()
    for submission in submissions:
        wish = submission.config["base"]
        try:
            same = not wish or wish == base.name or load_base(wish).fingerprint == base.fingerprint
        except ConfigError as error:
            mistakes.found += of_submission(type(error)(error.cause, error.hint, path="base"), submission)
            continue
        if not same:
            says = (
                f"The task {submission.name!r} is meant for the base {wish!r}, but this home's base is {base.name!r}."
            )
            hint = (
                f"Submit it to a home of that base (`{_elsewhere(wish)}`, then `marlaas --home DIR submit …`), or take"
                " 'base' out of the task file."
            )
            mistakes.found += of_submission(ConfigError(says, hint, path="base"), submission)
    mistakes.refuse()


def _foreign(home: Home, base: HomeBase, unknown: str | None) -> list[BoundTask]:
    with Reader(home.database) as reader:
        return foreign_tasks(reader.bound_tasks(), base.fingerprint, unknown)


def _belong(tasks: Sequence[BoundTask], base: HomeBase) -> str:
    unfinished = [task for task in tasks if task.state not in FINISHED]
    kept = [task for task in tasks if task not in unfinished]
    parts = [f"the unfinished {_listed(unfinished)}"] if unfinished else []
    parts += [f"the adapters of {_listed(kept)}"] if kept else []
    verb = "belongs" if len(tasks) == len(unfinished) == 1 else "belong"
    names = _names(tasks)
    other = "another base" + (f" ({names[0]})" if len(names) == 1 else "")
    if names == [base.name]:
        other = "what its files held before they were changed"
    return f"{' and '.join(parts)} {verb} to {other}"


def _back(tasks: Sequence[BoundTask], base: HomeBase, source: str) -> str:
    names = _names(tasks)
    if base.name in names:
        return "put the old files back"
    if source == "MARLAAS_BASE":
        return "unset MARLAAS_BASE"
    return f"go back (`marlaas base use {shlex.quote(names[0]) if names else 'NAME'}`)"


def _names(tasks: Sequence[BoundTask]) -> list[str]:
    return sorted({task.base_name for task in tasks if task.base_name})


def _listed(tasks: Sequence[BoundTask]) -> str:
    shown = ", ".join(f"{task.id} ({task.tenant}/{task.name})" for task in tasks[:NAMED])
    more = f" and {len(tasks) - NAMED} more" if len(tasks) > NAMED else ""
    return f"{'task' if len(tasks) == 1 else 'tasks'} {shown}{more}"


def _elsewhere(name: str) -> str:
    return f"marlaas --home DIR home new`, then `marlaas --home DIR base use {shlex.quote(name)}"


def _finish(tasks: Sequence[BoundTask]) -> str:
    example = tasks[0].id
    return (
        f"finish or cancel these tasks (`marlaas cancel {example}`), take their adapters away (`marlaas adapters export"
        f" {example} --out DIR`) and delete them (`marlaas adapters delete {example}`)"
    )
