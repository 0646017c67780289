"""The person's own editor, for a task file or a plugin: it blocks until the person has left it.

``edit`` and ``edited`` expect that the terminal was given away; ``opened`` does so itself. Knows no form.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from textual.app import SuspendNotSupported

from marlaas.engine.errors import ConfigError

from .application import Application

_PLUS = ("vi", "vim", "nvim", "view", "nano", "pico", "emacs", "emacsclient", "micro", "kak", "joe", "ne", "mcedit")
"""Editors that are told a line as ``+12`` before the file."""
_COLON = {"code": ("--goto",), "codium": ("--goto",), "cursor": ("--goto",), "subl": (), "hx": (), "helix": ()}
"""Editors that are told a line as ``file:12``, after these words."""


def editor() -> list[str]:
    """The command of the editor, from ``VISUAL`` or ``EDITOR``. Raises ``ConfigError`` where none is set."""
    for name in ("VISUAL", "EDITOR"):
        try:
            if command := shlex.split(os.environ.get(name, "")):
                return command
        except ValueError as error:
            raise ConfigError(f"The variable {name} cannot be read as a command: {error}.") from error
    raise ConfigError("No editor is set.", "Set EDITOR, for example to nano.")


def at_line(command: Sequence[str], path: Path, line: int) -> list[str]:
    """The command that opens a file, at a line where one is given and the editor is known to take one."""
    name = Path(command[0]).name
    if line and name in _PLUS:
        return [*command, f"+{line}", str(path)]
    if line and name in _COLON:
        return [*command, *_COLON[name], f"{path}:{line}"]
    return [*command, str(path)]


def edit(path: Path, line: int = 0) -> None:
    """Open a file and wait; ``line`` as in ``at_line``. Raises ``ConfigError`` where the editor cannot be started, or
    failed."""
    command = editor()
    try:
        code = subprocess.run(at_line(command, path, line)).returncode
    except OSError as error:
        raise ConfigError(f"The editor {command[0]} cannot be started: {error.strerror}.", "Set EDITOR.") from error
    if code:
        raise ConfigError(f"The editor {command[0]} ended with exit code {code}; nothing was taken over.")


def edited(text: str) -> str:
    """``text`` as the person left it. Raises ``ConfigError``."""
    with TemporaryDirectory(prefix="marlaas-task-") as folder:
        path = Path(folder) / "task.toml"
        path.write_text(text, encoding="utf-8")
        edit(path)
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError("What the editor saved is no UTF-8 text.") from error


def line_of(text: str, paths: Iterable[str]) -> int | None:
    """The number, from 1, of the line of a task file that sets one of these keys: the first that is there."""
    for named in paths:
        table, _, key = named.rpartition(".")
        inside = ""
        for number, line in enumerate(text.splitlines(), 1):
            if header := re.match(r"\s*\[\s*([\w.]+)\s*\]", line):
                inside = header[1]
            elif re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line) and inside == table:
                return number
    return None


def opened(app: Application, path: Path, line: int = 0) -> bool:
    """Open a file in the editor, which gets the whole terminal meanwhile; ``line`` as in ``at_line``.

    Returns False where no editor is set or there is no terminal; any other error is shown in a notice.
    """
    try:
        editor()
    except ConfigError:
        return False  # none is set, which is no mistake
    try:
        with app.suspend():
            edit(path, line)
    except SuspendNotSupported:
        return False
    except ConfigError as error:
        app.say(str(error), bad=True)
        return False
    return True
