"""Bare ``marlaas``: the terminal application, or the plain list without a terminal."""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import signal
import sys
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from marlaas.engine.errors import ConfigError
from marlaas.engine.home.paths import Home

from .. import output
from ..text.format import cells, clip, line
from .parser import home_of

if TYPE_CHECKING:
    from ..tui.frame.first_frame import FirstFrame
    from ..tui.frame.preferences import Preferences


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the application's looks and permissions."""
    parser.add_argument("--readonly", action="store_true", help="look, but change nothing: for demonstrations")
    parser.add_argument("--ascii", action="store_true", help="nothing but ASCII on the screen")
    parser.add_argument("--web", action="store_true", help=argparse.SUPPRESS)  # what `serve` starts for each page
    parser.add_argument("--theme", metavar="NAME", help="marlaas, marlaas-light, marlaas-colour-blind, ansi-dark, …")


def has_terminal() -> bool:
    """True if both ends are terminals: on a pipe Textual waits for ever, and it draws on standard error."""
    return sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()


def agreed(question: str, what: str = "your consent") -> bool:
    """True if the person answers yes. Raises ``ConfigError`` without a terminal to ask for ``what``."""
    if not has_terminal():
        raise ConfigError(f"There is no terminal to ask for {what} in.", "Give --yes to allow it.")
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def run(args: argparse.Namespace) -> int:
    """Open the terminal application."""
    return open_application(
        home_of(args), readonly=args.readonly, web=args.web, ascii_=args.ascii, theme=args.theme or ""
    )


def open_application(
    home: Home, demo: bool = False, *, readonly: bool = False, web: bool = False, ascii_: bool = False, theme: str = ""
) -> int:
    """Run the application until it quits. Raises ``ConfigError`` for invalid preferences."""
    preferences = _preferences(ascii_, theme)
    if preferences.keys:
        from ..keymap import check_keys
        from ..tui.frame.preferences import preferences_file

        check_keys(preferences.keys, str(preferences_file()))

    if not web:  # some shells export the size at their start, which would hide every resize
        for name in ("COLUMNS", "LINES"):
            os.environ.pop(name, None)

    readonly = readonly or (home.database.exists() and not os.access(home.database, os.W_OK))  # another person's
    if home.database.exists() and not readonly:
        from marlaas.engine.store.schema import is_current

        if not is_current(home.database):  # what updates it takes longer to load than all else before the first paint
            from marlaas.engine.daemon.control import update_database

            update_database(home)
    gc.disable()  # looking for garbage takes a tenth of the time until the first paint, and there is none yet
    from ..tui.frame.first_frame import first_frame

    if not web:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # leaves the first frame's screen
    with nullcontext() if web or preferences.ascii else first_frame(home, demo, readonly) as first:
        from ..app import MarlaasApp
        from ..tui.frame.terminal import continuing, end_with_terminal

        application = MarlaasApp(home, demo=demo, preferences=preferences, readonly=readonly, web=web)
        application.begun = partial(_now_shown, first)
        if first is not None:
            application.driver_class = continuing(first)
        if not web:
            end_with_terminal(sys.stdin.fileno())
        application.run()
    if application.farewell:
        output.talk(application.farewell)
    return application.return_code or output.OK


def _now_shown(first: FirstFrame | None) -> None:
    """Also start garbage collection; existing objects are frozen, never scanned."""
    if first is not None:
        first.shown()
    gc.freeze()
    gc.enable()


def _preferences(ascii_: bool, theme: str) -> Preferences:
    from ..tui.frame.preferences import check_theme, read_preferences

    preferences = read_preferences()
    if theme:
        preferences = replace(preferences, theme=check_theme(theme, "--theme"))
    drawn = "utf" in (sys.stderr.encoding or "").lower()  # where Textual draws: elsewhere each sign would be a “?”
    return preferences if drawn and not ascii_ else replace(preferences, ascii=True)


# One line of standard error, rewritten each second and finally removed. ``--plain``: a line at the start and every ten
# seconds. Pipe or file: silent, or one line.

_INTERVAL = 1.0
_HEARD = 10.0


class Waiting:
    """Shows ``what`` while a block runs: Loading arithmetic. ``piped``: one line in a pipe too."""

    def __init__(self, what: str, piped: bool = False) -> None:
        self._what = line(what)
        self._piped = piped
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._drawn = 0
        """Cells of the line that is shown."""

    def __enter__(self) -> Waiting:
        if sys.stderr.isatty():
            began = time.monotonic()
            self._draw(0)
            threading.Thread(target=self._run, args=(began,), name="waiting", daemon=True).start()
        else:
            self._ended.set()
            if self._piped:
                output.talk(f"{self._what} …")
        return self

    def __exit__(self, *unused: object) -> None:
        self.end()

    def end(self) -> None:
        """Remove the line; may be called again."""
        with self._lock:
            self._ended.set()
            self._wipe()

    def say(self, text: str) -> None:
        """Print a line above it; it is redrawn within a second."""
        with self._lock:
            self._wipe()
            output.talk(text)

    def _run(self, began: float) -> None:
        while not self._ended.wait(_HEARD if output.is_plain() else _INTERVAL):
            self._draw(int(time.monotonic() - began))

    def _draw(self, seconds: int) -> None:
        with self._lock:
            if self._ended.is_set():
                return
            if output.is_plain():
                output.talk(f"{self._what}: {seconds} seconds so far." if seconds else f"{self._what} ...")
                return
            text = clip(f"{self._what} …{f' {seconds} s' if seconds else ''}", shutil.get_terminal_size().columns - 1)
            self._wipe()
            self._drawn = cells(text)
            print(text, end="", file=sys.stderr, flush=True)

    def _wipe(self) -> None:
        if self._drawn:
            print(f"\r{' ' * self._drawn}\r", end="", file=sys.stderr, flush=True)
            self._drawn = 0
