"""How one says which version is meant: in a command to the engine, and in the words that verbs and task files take.

Pure.
"""

from __future__ import annotations

from typing import Any

from marlaas.engine.spec import ONLY
from marlaas.engine.store import VersionRow

from ..words.format import line


def owner(version: VersionRow) -> str:
    """Whose version it is, as one says it to a verb: 17, or 17/player where the task file names its policies."""
    return str(version.task) if version.policy == ONLY else f"{version.task}/{line(version.policy)}"


def reference(version: VersionRow) -> str:
    """The version, as verbs and task files say it: 17@12, or 17/player@12."""
    return f"{owner(version)}@{version.number}"


def arguments(version: VersionRow) -> dict[str, Any]:
    """What a command to the engine needs, beside the task's number."""
    return {"version": version.number} | ({} if version.policy == ONLY else {"policy": version.policy})
