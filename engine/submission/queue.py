"""The states of a task and what commands do to them, and whether a submission fits the environments that are served.

Pure decisions; the store keeps the states, the scheduler acts on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import ConfigError, EnvironmentMissing
from ..spec import CHOICE, MISSING, REFUSED, UNKNOWN, check_declared, components_of, nearest, parse
from ..store import EnvironmentRow, Submission

PARAMETERS = "environment_config"
"""The table of a task file that its environment reads."""
TRANSITIONS: dict[str, dict[str, str]] = {
    "pause": {"submitted": "paused", "queued": "paused", "running": "paused"},
    "resume": {"paused": "queued"},
    "retry": {"failed": "queued", "cancelled": "queued", "queued": "queued"},  # queued: tried at once
    "cancel": {"submitted": "cancelled", "queued": "cancelled", "running": "cancelled", "paused": "cancelled"},
    "extend": {
        "submitted": "submitted",
        "queued": "queued",
        "running": "queued",
        "paused": "paused",
        "done": "queued",
    },
    "rollback": {"paused": "queued", "done": "queued", "failed": "queued", "cancelled": "queued"},
}
PAST = {
    "pause": "paused",
    "resume": "resumed",
    "retry": "retried",
    "cancel": "cancelled",
    "extend": "extended",
    "rollback": "rolled back",
}
"""The participle of each command, for messages."""


def next_state(command: str, state: str) -> str:
    """The state after a command. Raises ``ConfigError`` where the command makes no sense."""
    if command not in TRANSITIONS:
        raise ConfigError(f"This engine knows no command {command!r}.", "Restart it if marlaas was updated meanwhile.")
    allowed = TRANSITIONS[command]
    if state not in allowed:
        hint = "`marlaas resume` goes on with it." if state == "paused" else f"Only {', '.join(allowed)} ones can."
        raise ConfigError(f"A task that is {state} cannot be {PAST[command]}.", hint)
    return allowed[state]


def find_environment(name: str, environments: list[EnvironmentRow]) -> EnvironmentRow:
    """The environment that a task file means, by "plugin/environment" or its last part alone.

    Raises ``EnvironmentMissing`` where none or several have that name.
    """
    matches = [e for e in environments if e.name == name] or [
        e for e in environments if e.name.rpartition("/")[2] == name
    ]
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
    if not submission.config.get("mixture"):
        found = find_environment(submission.environment, environments)
        check_parameters(found, submission.config.get(PARAMETERS, {}), PARAMETERS)
        if submission.config.get("policies") and found.version:
            check_declared(parse(submission.config, submission.name), found.agents)
        return
    for place, spec in enumerate(components_of(parse(submission.config, submission.name)).values()):
        found = find_environment(spec.environment, environments)
        check_parameters(found, spec.environment_config, f"mixture[{place}].config")
        if found.version:
            check_declared(spec, found.agents)


def check_parameters(found: EnvironmentRow, config: dict[str, Any], table: str) -> None:
    """Refuse parameters that an environment does not take; ``table`` is where the task file has them.

    Raises ``ConfigError``. Where no version of it has served yet, nothing is known of its parameters.
    """
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


def _check_value(stored: dict[str, Any], value: Any, owner: str, table: str) -> None:
    """Raise ``ConfigError`` for a value that a parameter, given as the store keeps it, does not allow."""
    from marlaas.plugins.parameters import Parameter, checked  # imported only where a parameter is set

    parameter = Parameter(**{**stored, "choices": tuple(stored.get("choices", ()))})
    try:
        checked(parameter, value, owner)
    except ValueError as error:
        raise ConfigError(str(error), path=f"{table}.{parameter.name}", code=REFUSED) from None
