"""An adapter version of a home into a folder that PEFT, and if asked llama.cpp, can load.

Knows no terminal.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..reading.opening import reading
from ..words.format import line

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


def _prompt(home: Home, version: VersionRow) -> str:
    with reading(home) as reader:
        return task_prompt(reader, version) if reader else ""


def task_prompt(reader: HomeReader, version: VersionRow) -> str:
    """The first prompt of one of the policy's newest episodes; empty where none is stored. It is foreign text."""
    said = reader.newest_group(version.task, version.policy)
    own = (turn.text for row in said if row.policy == version.policy for turn in row.turns if turn.role == "user")
    return next(own, "")
