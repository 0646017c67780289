"""Opens a task file in the person's editor, which gets the terminal meanwhile.

What comes back is a table, or the text with its mistake.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from textual.app import SuspendNotSupported

from marlaas.engine.errors import ConfigError
from marlaas.engine.submission import taskfile

from ..context.application import Application
from ..context.editor import edited, editor, line_of

WHERE = "the task file"


def why_no_editor(app: Application) -> str:
    """Why no editor can be opened; empty where one can."""
    if app.web or app.readonly:
        return "There is no editor in the read-only mode, nor in a browser."
    try:
        editor()
    except ConfigError as error:
        return str(error)
    return ""


def edited_table(app: Application, text: str) -> tuple[dict[str, Any] | None, str, str]:
    """(the table, the text to go on with, what is wrong with it); the last two are empty where the file is valid."""
    if reason := why_no_editor(app):
        return None, "", reason
    try:
        with app.suspend():
            saved = edited(text)
    except SuspendNotSupported:
        return None, "", "This terminal cannot be given to an editor."
    except ConfigError as error:
        return None, "", str(error)
    try:
        table = taskfile.table_of(saved, WHERE)
        taskfile.tasks_of(table, WHERE, Path.cwd())
    except ConfigError as error:
        line = line_of(saved, (error.path, *error.also))
        return None, saved, f"{f'Line {line}: ' if line else ''}{error} ctrl+e goes on editing."
    return table, "", ""
