"""An adapter version of a home into a folder that PEFT, and if asked llama.cpp, can load.

Knows no terminal.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..words.format import line

if TYPE_CHECKING:
    from marlaas.engine.home import Home
    from marlaas.engine.store import VersionRow


def export(home: Home, version: VersionRow, out: Path, gguf: bool = False) -> list[Path]:
    """Write the folder ``out``. Raises as ``engine.adapters.export.export_adapter`` does."""
    from marlaas.engine.adapters import export_adapter
    from marlaas.engine.home import load_settings

    from .doctor.machine import base_folder

    state = home.file(version.path)
    brought = load_settings(home).rollout.gguf
    return export_adapter(state, base_folder(home), out, gguf, line(version.task_name), version.checksum, brought)
