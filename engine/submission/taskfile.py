"""Task files: TOML text in, validated submissions out. Standard library only; knows no store and no engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ..base import anchored
from ..errors import ConfigError
from ..spec import TaskSpec, members, parse, read_toml, start_folder
from ..store import Submission


def load(path: Path) -> list[Submission]:
    """Read one task file: one task, or the members of a sweep. Relative folders in it count from the file's folder.

    Raises ``ConfigError`` with one sentence that names the file and the key.
    """
    try:
        source = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no UTF-8 text.", "A task file is TOML.") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    return tasks_of(table_of(source, str(path)), str(path), path.parent, source)


def table_of(source: str, where: str) -> dict[str, Any]:
    """The table that a task file's text holds; ``where`` names it in errors. Raises ``ConfigError``."""
    try:
        return read_toml(source)
    except ValueError as error:
        raise ConfigError(f"{where} is not valid TOML: {error}.") from error


def tasks_of(table: dict[str, Any], where: str, folder: Path, source: str = "") -> list[Submission]:
    """The tasks that a table means: one, or the members of a sweep.

    ``folder``: where relative folders in it count from; ``source``: the file's text, which is stored with each task.
    Raises ``ConfigError``, which names ``where`` and the key.
    """
    return [
        submission(_anchored(spec, folder), source, member.family)
        for member in members(table, where)
        for spec in [parse(member.table, where)]
    ]


def _anchored(spec: TaskSpec, folder: Path) -> TaskSpec:
    """The specification with relative folders and files made absolute."""

    def found(words: str) -> str:
        start = start_folder(words)
        return words if start is None else str((folder / start).absolute())

    policies = {
        name: replace(policy, start=found(policy.start), frozen=found(policy.frozen))
        for name, policy in spec.policies.items()
    }
    measure = replace(spec.eval, agents={agent: found(words) for agent, words in spec.eval.agents.items()})
    policy = replace(spec.policy, start=found(spec.policy.start))
    data, versions, base = spec.data, tuple(map(found, spec.versions)), anchored(spec.base, folder)
    if data.path:
        data = replace(data, path=str((folder / Path(data.path).expanduser()).absolute()))
    return replace(spec, base=base, policy=policy, policies=policies, eval=measure, versions=versions, data=data)


def environments_of(submission: Submission) -> list[tuple[str, dict[str, Any]]]:
    """The environments that a task is to play, with their parameters: one, or those of a mixture."""
    parts = submission.config.get("mixture")
    if parts:
        return [(part["environment"], part["config"]) for part in parts]
    return [(submission.environment, submission.config.get("environment_config", {}))]


def submission(spec: TaskSpec, source: str = "", family: str = "") -> Submission:
    """The row that the app inserts for a spec; names in ``depends_on`` are not resolved yet."""
    return Submission(
        tenant=spec.tenant,
        name=spec.name,
        environment=spec.played,
        steps=spec.steps,
        priority=spec.queue.priority,
        config=spec.to_json(),
        source=source,
        family=family,
        needs=tuple(needed for needed in spec.queue.depends_on if isinstance(needed, int)),
    )
