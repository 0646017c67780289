"""The person's editor and other programs in the terminal's foreground."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import TYPE_CHECKING, Any

from textual.app import SuspendNotSupported

from marlaas.engine.errors import ConfigError, MarlaasError
from marlaas.engine.home.paths import Home

if TYPE_CHECKING:
    from ...app import MarlaasApp


def verb_command(home: Home, *words: str) -> list[str]:
    """The command line of a verb on this home."""
    return [sys.executable, "-P", "-m", "marlaas.app.cli.main", *words, "--home", str(home.root)]


def verb_output(home: Home, *words: str, seconds: float) -> str:
    """A verb's output; blocks. Raises ``MarlaasError`` with its complaint if it prints nothing or is slow."""
    try:
        ended = subprocess.run(
            verb_command(home, *words), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired as error:
        raise MarlaasError(f"`marlaas {' '.join(words)}` took longer than {seconds:.0f} s and was ended.") from error
    if not ended.stdout.strip():
        complaint = ended.stderr.strip().removeprefix("marlaas: ").split("\n")
        raise MarlaasError(" ".join(part.strip() for part in complaint) or f"It ended with code {ended.returncode}.")
    return ended.stdout


# Ctrl-C reaches all foreground processes, so the application too; asyncio would quit.

_INTERRUPTED = (128 + signal.SIGINT, -signal.SIGINT)


def run(command: Sequence[str]) -> int:
    """Run a program; returns its exit code. Ctrl-C is the program's. Raises ``OSError``."""
    with _on_interrupt(_ignored):
        return subprocess.run(command, check=False).returncode


def hand_over(command: Sequence[str], meanwhile: str) -> None:
    """Run a program, then wait for enter, so that its last lines can be read.

    Shows ``meanwhile`` at once, as it may start slowly. No wait after Ctrl-C. Raises ``OSError``.
    """
    print(meanwhile, flush=True)
    if run(command) in _INTERRUPTED:
        return
    with _on_interrupt(signal.default_int_handler), suppress(KeyboardInterrupt, EOFError):
        input("\nEnter goes back to marlaas.")


def _ignored(number: int, frame: FrameType | None) -> None:
    """Do nothing. A function: the program would inherit ``SIG_IGN`` and ignore Ctrl-C too."""


@contextmanager
def _on_interrupt(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # signals are handled in the main one by itself
        yield
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# ``edit`` and ``edited`` need a released terminal; ``opened`` releases it.

_PLUS = "nano pico vi vim nvim view gvim emacs emacsclient micro ne joe kak mg mcedit"
_AT_LINE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_PLUS.split(), ("+{line}", "{path}")),
    **dict.fromkeys(("hx", "helix", "subl", "zed"), ("{path}:{line}",)),
    **dict.fromkeys(("code", "codium", "cursor"), ("--goto", "{path}:{line}")),
}
"""Arguments that open a file at a line, by editor."""


def editor() -> list[str]:
    """The command of ``VISUAL`` or ``EDITOR``, else nano or vi. Raises ``ConfigError`` if none exists."""
    for name in ("VISUAL", "EDITOR"):
        try:
            if command := shlex.split(os.environ.get(name, "")):
                return command
        except ValueError as error:
            raise ConfigError(f"The variable {name} cannot be read as a command: {error}.") from error
    for name in ("nano", "vi"):
        if shutil.which(name):
            return [name]
    raise ConfigError("No editor is set, and neither nano nor vi is there.", "Set EDITOR to yours.")


def at_line(command: Sequence[str], path: Path, line: int) -> list[str]:
    """The command that opens a file at a line, from 1; 0 or an unknown editor: at its start."""
    known = _AT_LINE.get(Path(command[0]).stem.lower(), ()) if line > 0 else ()
    return [*command, *(part.format(line=line, path=path) for part in known or ("{path}",))]


def edit(path: Path, line: int = 0) -> None:
    """Open a file, at a line if given, and wait. Raises ``ConfigError``."""
    command = at_line(editor(), path, line)
    try:
        code = run(command)
    except OSError as error:
        raise ConfigError(f"The editor {command[0]} cannot be started: {error.strerror}.", "Set EDITOR.") from error
    if code:
        raise ConfigError(f"The editor {command[0]} ended with exit code {code}; nothing was taken over.")


def edited(text: str) -> str:
    """``text`` as edited by the person. Raises ``ConfigError``."""
    with TemporaryDirectory(prefix="marlaas-task-") as folder:
        path = Path(folder) / "task.toml"
        path.write_text(text, encoding="utf-8")
        edit(path)
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError("What the editor saved is no UTF-8 text.") from error


def opened(app: MarlaasApp, path: Path, line: int = 0) -> bool:
    """Open a file in the editor, at a line if given.

    False: no editor or terminal; other errors are notices.
    """
    if app.web:
        return False
    try:
        editor()
    except ConfigError:
        return False  # none is there, which is no mistake
    try:
        with app.suspend():
            edit(path, line)
    except SuspendNotSupported:
        return False
    except ConfigError as error:
        app.say(str(error), bad=True)
        return False
    return True


def edit_source(app: MarlaasApp, path: Path, line: int = 0) -> None:
    """Open a file in the editor, at a line if given; a notice reports the save."""
    before = _written(path)
    if not opened(app, path, line):
        at = f", line {line}" if line else ""
        app.say(f"No editor was opened; the file is {path}{at}. EDITOR says which one is yours.")
    elif _written(path) != before:
        app.say(f"{path} is saved.")
    else:
        app.say(f"{path} is as it was.")


def _written(path: Path) -> tuple[int, int] | None:
    """Time and inode: some editors replace the file."""
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_mtime_ns, state.st_ino
