"""What the libraries of a home's plugins take of the disk, and which of them no plugin asks for any more.

Nothing is removed: a task that is pinned to an older version of a plugin may want what the newest does not declare, and
only a person knows whether it will go on.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...home import folder_size
from ..files.source import SourceError, plugin_paths, read_source
from .interpreters import Refused, needs_of


@dataclass(frozen=True)
class Installed:
    """One set of libraries on the disk, whole or not."""

    folder: Path
    size: int
    """Bytes."""
    claimed: bool
    """Whether the newest content of a plugin declares it."""


def installed(venvs: Path, plugins: Sequence[Path]) -> list[Installed]:
    """The sets below ``venvs``, by name, as the plugins in the folders ``plugins`` claim them; none where there is no
    such folder.

    A plugin that cannot be read claims nothing. It may start processes, to ask other Pythons for their version.
    """
    with suppress(OSError), os.scandir(venvs) as entries:
        folders = sorted(Path(e.path) for e in entries if e.is_dir() and not e.name.startswith((".", "api-")))
        claims = _claims(venvs, plugins) if folders else set()
        return [Installed(folder, folder_size(folder), folder in claims) for folder in folders]
    return []


def _claims(venvs: Path, plugins: Sequence[Path]) -> set[Path]:
    found = set()
    for path in (path for folder in plugins for path in plugin_paths(folder).values()):
        with suppress(OSError, SourceError, Refused):
            _, venv = needs_of(read_source(path), venvs)
            if venv is not None:
                found.add(venv.folder)
    return found
