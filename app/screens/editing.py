"""Opens the source of an environment in the person's editor, and says what came of it."""

from __future__ import annotations

from pathlib import Path

from ..context.application import Application
from ..context.editor import opened


def edit_source(app: Application, path: Path, line: int = 0) -> None:
    """Open a file in the editor, at a line if one is given; a notice says whether it was saved, or where it is."""
    before = _written(path)
    if not opened(app, path, line):
        at = f", line {line}" if line else ""
        app.say(f"No editor was opened; the file is {path}{at}. EDITOR says which one is yours.")
    elif _written(path) != before:
        app.say(f"{path} is saved.")
    else:
        app.say(f"{path} is as it was.")


def _written(path: Path) -> tuple[int, int] | None:
    """What changes when a file is saved: its time, and its number where an editor puts another one in its place."""
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_mtime_ns, state.st_ino
