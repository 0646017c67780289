"""A task that measures versions, from what a person says on a command line or in Python: the rest is found out.

Whose sampling, environment and tenant are meant follows from the task of the first version that is named.
"""

from __future__ import annotations

import getpass
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..words.format import clip

if TYPE_CHECKING:
    from marlaas.engine.store import VersionRow

    from ..reading.home_reader import HomeReader

NAME = 80
"""Characters of a name that is made up."""


@dataclass(frozen=True)
class Wish:
    """What is to be measured, and how; what is absent is found out."""

    versions: Sequence[str]
    """As ``versions`` in a task file."""
    environment: str = ""
    """Empty: that of the first version's task, with its configuration and the rows that it names."""
    config: Mapping[str, Any] = field(default_factory=dict)
    tenant: str = ""
    name: str = ""
    measure: Mapping[str, Any] = field(default_factory=dict)
    """Keys of [eval]."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Keys of [sampling]; others are those of the first version's task."""
    queue: Mapping[str, Any] = field(default_factory=dict)
    """Keys of [queue]."""


def evaluation_table(wish: Wish, reader: HomeReader | None) -> dict[str, Any]:
    """The table of a task file. Raises ``ConfigError`` where nobody says which environment, and ``AdapterError``."""
    from marlaas.engine.errors import ConfigError

    first = _first(wish.versions, reader)
    like = reader.task_config(first.task) if reader and first else {}
    environment = wish.environment or like.get("environment", "")
    if not environment:
        raise ConfigError("No environment is given to measure on.", "Give --environment NAME.")
    same = environment == like.get("environment")
    measure = dict(wish.measure)
    if measure.get("samples", 1) > 1 and "temperature" not in measure:  # at 0 all samples would be the same
        measure["temperature"] = like.get("sampling", {}).get("temperature", 1.0)
    sampling = {key: like.get("sampling", {}).get(key) for key in ("max_tokens", "max_episode_tokens", "thinking")}
    table: dict[str, Any] = {
        "tenant": wish.tenant or (first.tenant if first else getpass.getuser()),
        "name": wish.name or clip(f"{', '.join(wish.versions)} on {environment}", NAME),
        "environment": environment,
        "kind": "eval",
        "versions": list(wish.versions),
        "environment_config": {**(like.get("environment_config", {}) if same else {}), **wish.config},
        "sampling": {**{key: value for key, value in sampling.items() if value is not None}, **wish.sampling},
        "eval": measure,
        "data": _rows(like) if same else None,
        "queue": dict(wish.queue),
    }
    return {key: value for key, value in table.items() if value not in ({}, None)}


def _rows(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """The rows that a task names; None where it draws from its environment's own."""
    data = config.get("data", {})
    return {key: value for key, value in data.items() if value} if data.get("path") else None


def environment_of(versions: Sequence[str], reader: HomeReader | None) -> str:
    """The environment of the task of the first version that is of one; empty where none is. Raises ``AdapterError``."""
    first = _first(versions, reader)
    return str(reader.task_config(first.task).get("environment", "")) if reader and first else ""


def _first(versions: Sequence[str], reader: HomeReader | None) -> VersionRow | None:
    """The first of them that is a version of a task; None where there is none."""
    from marlaas.engine.spec import BASE, start_folder
    from marlaas.engine.submission import choose_at

    of_tasks = [words for words in versions if words != BASE and start_folder(words) is None]
    if reader is None or not of_tasks:
        return None
    return choose_at(reader.versions(), of_tasks[0])
