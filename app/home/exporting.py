"""An adapter version of a home into a folder that PEFT, and if asked llama.cpp, can load.

Knows no terminal.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..reading.opening import reading
from ..words.format import line, score
from ..words.tasks import newest_series

if TYPE_CHECKING:
    from marlaas.engine.home import Home
    from marlaas.engine.store import VersionRow

    from ..reading.home_reader import HomeReader


def export(home: Home, version: VersionRow, out: Path, gguf: bool = False) -> list[Path]:
    """Write the folder ``out``. Raises as ``engine.adapters.export.export_adapter`` does."""
    from marlaas.engine.adapters import export_adapter
    from marlaas.engine.base import load_base
    from marlaas.engine.home import load_settings

    settings = load_settings(home)
    state, base, name = home.file(version.path), load_base(settings.base), line(version.task_name)
    brought = settings.rollout.gguf or str(base.gguf or "")
    return export_adapter(
        state, base.path.resolve(), out, gguf, name, version.checksum, brought, _prompt(home, version)
    )


def no_gain(reader: HomeReader, version: VersionRow) -> str:
    """A sentence where the version scored no more on the held-out prompts than its policy before training; else empty.

    Even the best of a task may be worse than the base.
    """
    series = newest_series([row for row in reader.evals(version.task, version.policy) if not row.suite])
    scores = {row.step: row.score for row in series if row.score is not None}
    before, own = scores.get(0), scores.get(version.number)
    if version.number == 0 or before is None or own is None or own > before:
        return ""
    return (
        f"Training has not helped: version {version.number} scored {score(own)} on the held-out prompts, and the policy"
        f" before its first step {score(before)}."
    )


def _prompt(home: Home, version: VersionRow) -> str:
    with reading(home) as reader:
        return task_prompt(reader, version) if reader else ""


def task_prompt(reader: HomeReader, version: VersionRow) -> str:
    """The first prompt of one of the policy's newest episodes; empty where none is stored. It is foreign text."""
    said = reader.newest_group(version.task, version.policy)
    own = (turn.text for row in said if row.policy == version.policy for turn in row.turns if turn.role == "user")
    return next(own, "")
