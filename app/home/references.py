"""How a version is named: in a command to the engine, and in the words of verbs and task files. Pure."""

from __future__ import annotations

from typing import Any

from marlaas.engine.spec import ONLY
from marlaas.engine.store import VersionRow

from ..words.format import line


def owner(version: VersionRow) -> str:
    """The owner of a version in the words of a verb: 17, or 17/player where the task file names its policies."""
    return str(version.task) if version.policy == ONLY else f"{version.task}/{line(version.policy)}"


def reference(version: VersionRow) -> str:
    """The version in the words of verbs and task files: 17@12, or 17/player@12."""
    return f"{owner(version)}@{version.number}"


def arguments(version: VersionRow) -> dict[str, Any]:
    """The arguments of a command to the engine that mean this version, beside the task's number."""
    return {"version": version.number} | ({} if version.policy == ONLY else {"policy": version.policy})
