"""Whether a submission fits the environments that are served. Pure decisions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import ConfigError, EnvironmentMissing
from ..spec import CHOICE, MISSING, REFUSED, UNKNOWN, check_declared, components_of, nearest, parse
from ..store import EnvironmentRow, Submission
from .taskfile import environments_of

PARAMETERS = "environment_config"
"""The table of a task file that its environment reads."""


def find_environment(name: str, environments: list[EnvironmentRow]) -> EnvironmentRow:
    """The environment that a task file means, by "plugin/environment" or its last part alone.

    A plugin that has not served yet, because its libraries are to be allowed or it is being loaded, stands for all
    environments of its name: which it has is not known for sure. Raises ``EnvironmentMissing`` where none or several
    have that name.
    """
    matches = [e for e in environments if e.name == name] or [
        e for e in environments if e.name.rpartition("/")[2] == name
    ]
    plugin = name.partition("/")[0]
    matches = [e for e in matches if e.version] or matches  # what serves goes before what may come
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
        f"{nearest(name, known)} `marlaas env list` shows those that exist.",
        path="environment",
        code=CHOICE,
    )


def check_environments(submissions: Sequence[Submission], environments: list[EnvironmentRow]) -> None:
    """``check_environment`` of each; where there are several, the error names the task."""
    for submission in submissions:
        try:
            check_environment(submission, environments)
        except ConfigError as error:
            if len(submissions) == 1:
                raise
            says = f"{submission.name}: {error.message}"
            raise type(error)(says, error.hint, path=error.path, also=error.also, code=error.code) from None


def check_environment(submission: Submission, environments: list[EnvironmentRow]) -> None:
    """Refuse a submission whose environment or its configuration cannot work.

    Raises ``EnvironmentMissing`` or ``ConfigError``. A broken environment is allowed: the task waits for its repair.
    """
    mixed = bool(submission.config.get("mixture"))
    all_found = [
        _component(place, name, environments) if mixed else find_environment(name, environments)
        for place, (name, _) in enumerate(environments_of(submission))
    ]
    named = bool(submission.config.get("data", {}).get("path"))
    for suite in submission.config.get("eval", {}).get("suite", ()):
        try:
            other = find_environment(suite["environment"], environments)
            _check_parameters(other, suite["config"], "eval.suite")
            _check_rows(other, named and suite["environment"] == submission.environment, mixed)
        except ConfigError as error:
            says = f"The suite {suite['name']!r}: {error.message}"
            raise type(error)(says, error.hint, path="eval.suite", code=error.code) from None
    declares = submission.config.get("policies") or submission.config.get("kind") == "eval"
    for place, (found, (_, config)) in enumerate(zip(all_found, environments_of(submission), strict=True)):
        _check_parameters(found, config, f"mixture[{place}].config" if mixed else PARAMETERS)
        _check_rows(found, named, mixed)
        if found.version and declares:
            components = components_of(parse(submission.config, submission.name))
            check_declared(list(components.values())[place], found.agents)


def _component(place: int, name: str, environments: list[EnvironmentRow]) -> EnvironmentRow:
    """``find_environment`` of one component of a mixture, whose table the error names."""
    try:
        return find_environment(name, environments)
    except EnvironmentMissing as error:
        path = f"mixture[{place}].environment"
        raise EnvironmentMissing(error.message, error.hint, path=path, code=error.code) from None


def _check_parameters(found: EnvironmentRow, config: dict[str, Any], table: str) -> None:
    """Raise ``ConfigError`` for parameters that an environment does not take; one that never served takes any."""
    if not found.version:
        return
    parameters = {p["name"]: p for p in found.parameters}
    for key, value in config.items():
        if key not in parameters:
            says = f"The environment {found.name!r} has no parameter {key!r}."
            raise ConfigError(says, nearest(key, list(parameters)), path=f"{table}.{key}", code=UNKNOWN)
        _check_value(parameters[key], value, found.name, table)
    missing = [name for name, p in parameters.items() if p.get("required") and name not in config]
    if missing:
        says = f"The environment {found.name!r} needs {', '.join(missing)} in [{table}]."
        raise ConfigError(says, path=f"{table}.{missing[0]}", code=MISSING)


def _check_rows(found: EnvironmentRow, named: bool, mixed: bool) -> None:
    """Raise ``ConfigError`` where an environment and ``[data]`` do not fit.

    ``named``: the task file names rows; ``mixed``: it has a mixture, which cannot have any.
    """
    if not found.version:
        return
    if named and not found.rows:
        says = f"The environment {found.name!r} draws its tasks from no rows, so 'data.path' would have no effect."
        raise ConfigError(says, path="data.path", code=REFUSED)
    if not named and found.rows == "task":
        says = f"The environment {found.name!r} has no rows of its own."
        if mixed:
            hint = "A mixture takes no [data]: leave this environment out, or train on it alone."
            raise ConfigError(says, hint, path="mixture", code=MISSING)
        raise ConfigError(says, "Name some as 'path' below [data].", path="data.path", code=MISSING)


def _check_value(stored: dict[str, Any], value: Any, owner: str, table: str) -> None:
    """Raise ``ConfigError`` for a value that a parameter, given as the store keeps it, does not allow."""
    from marlaas.plugins.parameters import Parameter, checked  # imported only where a parameter is set

    parameter = Parameter(**{**stored, "choices": tuple(stored.get("choices", ()))})
    try:
        checked(parameter, value, owner)
    except ValueError as error:
        raise ConfigError(str(error), path=f"{table}.{parameter.name}", code=REFUSED) from None
