"""Checks a submission against the served environments and its rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ConfigError, EnvironmentMissing, Mistakes, as_one
from ..spec import CHOICE, MISSING, REFUSED, UNKNOWN, check_declared, components_of, data_tables, nearest, parse
from ..store import EnvironmentRow, Submission
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


def find_environment(name: str, environments: list[EnvironmentRow]) -> EnvironmentRow:
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
        raise EnvironmentMissing(says, "Write the whole name.", path="environment", code=CHOICE)
    known = sorted({e.name.rpartition("/")[2] for e in environments} | {e.name for e in environments if "/" in name})
    raise EnvironmentMissing(
        f"There is no environment {name!r}.",
        nearest(name, known) if known else "`marlaas env new NAME` writes one.",
        path="environment",
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
            found = _component(place, one.name, environments) if mixed else find_environment(one.name, environments)
            with mistakes:
                _check_parameters(found, one.config, f"mixture[{place}].config" if mixed else PARAMETERS)
            with mistakes:
                _check_rows(found, one.data is not None, f"mixture[{place}].data" if mixed else "data")
            with mistakes:
                _check_sampling(found, config.get("train", {}).get("sampling", ""))
            if found.version and declares:
                components = components_of(parse(config, submission.name))
                check_declared(list(components.values())[place], found.agents)
    for place, suite in enumerate(config.get("eval", {}).get("suite", ())):
        with mistakes:
            as_task = suite["environment"] == submission.environment and rows_named(config) is not None
            named = rows_named(suite) is not None or as_task
            _check_suite(f"eval.suite[{place}]", suite, environments, named)
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


def _component(place: int, name: str, environments: list[EnvironmentRow]) -> EnvironmentRow:
    try:
        return find_environment(name, environments)
    except EnvironmentMissing as error:
        path = f"mixture[{place}].environment"
        raise EnvironmentMissing(error.cause, error.hint, path=path, code=error.code) from None


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
