"""Task files: TOML text in, validated submissions out. Standard library only; knows no store and no engine."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

from .base.find import anchored
from .errors import ConfigError
from .spec import TaskSpec, parse
from .store.submissions import Submission
from .sweep import members


def load(path: Path) -> list[Submission]:
    """Read one task file: one task, or the members of a sweep. A relative folder in it counts from the file's own.

    Raises ``ConfigError`` with one sentence that names the file and the key.
    """
    try:
        source = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no UTF-8 text.", "A task file is TOML.") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    try:
        table = tomllib.loads(source)
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, tables in tables in tables
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error
    return [
        submission(replace(spec, base=anchored(spec.base, path.parent)), source, member.family)
        for member in members(table, str(path))
        for spec in [parse(member.table, str(path))]
    ]


def submission(spec: TaskSpec, source: str = "", family: str = "") -> Submission:
    """The row that the app inserts for a spec; what names in ``depends_on`` mean is not known yet."""
    return Submission(
        tenant=spec.tenant,
        name=spec.name,
        environment=spec.environment,
        steps=spec.steps,
        priority=spec.queue.priority,
        config=spec.to_json(),
        source=source,
        family=family,
        needs=tuple(needed for needed in spec.queue.depends_on if isinstance(needed, int)),
    )
