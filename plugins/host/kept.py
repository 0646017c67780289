"""A version of a plugin that a scoring process has loaded. Several are kept, and one at a time is there.

Its modules, its search path for imports, its variables, its folder, its log and its handlers of signals come with it
and go with it. So two versions that each have a module ``helper`` never meet, nor does the older of two versions of one
file see what the newer one imports. What a library keeps for itself is shared: it was imported once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ..environment import Environment
from .blame import Blame
from .loading import load_all

_TIMERS = tuple(getattr(signal, name) for name in ("ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF"))


@dataclass(frozen=True)
class Surroundings:
    """What of a process belongs to whoever runs in it."""

    search: tuple[str, ...]
    variables: dict[str, str]
    handlers: dict[int, Any]
    """By signal, as ``signal.getsignal`` says; those that Python does not know are left out."""
    recursion: int

    @classmethod
    def here(cls) -> Surroundings:
        """Those of this process, now."""
        handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
        known = {int(number): handler for number, handler in handlers.items() if handler is not None}
        return cls(tuple(sys.path), dict(os.environ), known, sys.getrecursionlimit())

    def restore(self) -> None:
        """Make this process's what they were; ends timers that somebody has left running."""
        for timer in _TIMERS:
            signal.setitimer(timer, 0.0)
        for number, handler in self.handlers.items():
            if signal.getsignal(number) is not handler:
                with contextlib.suppress(OSError, ValueError):
                    signal.signal(number, handler)
        sys.path[:] = self.search
        if dict(os.environ) != self.variables:
            os.environ.clear()
            os.environ.update(self.variables)
        with contextlib.suppress(RecursionError):
            sys.setrecursionlimit(self.recursion)


class Kept:
    """A version, loaded; ``enter`` and ``leave`` it in turns."""

    def __init__(self, path: Path, scratch: Path, log: str, base: Surroundings) -> None:
        """``path``: what to import; ``scratch``: where it may write; ``log``: where what it prints goes, as for the
        processes that play it, empty to leave that as it is; ``base``: those of a process that runs no version."""
        self.blame = Blame(path.parent)
        self.environments: dict[str, Environment] = {}
        self._path = path
        self._scratch = scratch
        self._log = log
        self._prefix = f"{path.parent}{os.sep}"
        self._name = f"plugin_{path.name if path.is_dir() else path.stem}"
        self._modules: dict[str, ModuleType] = {}
        self._before: set[str] = set()
        """Names of all modules that were there when it was last entered."""
        variables = base.variables | {"TMPDIR": str(scratch)}
        self._own = Surroundings(base.search, variables, base.handlers, base.recursion)

    def load(self) -> None:
        """Import it, having entered it; raises whatever its code raises."""
        self.environments = load_all(self._path).environments

    def enter(self) -> None:
        """From here on, its code finds what is its own."""
        self._own.restore()
        sys.modules.update(self._modules)
        self._before = set(sys.modules)
        sys.argv = [str(self._path)]
        tempfile.tempdir = None
        self._scratch.mkdir(parents=True, exist_ok=True)
        os.chdir(self._scratch)
        if self._log:
            _print_to(self._log)

    def leave(self) -> None:
        """From here on, nobody else finds what is its own."""
        self._own = Surroundings.here()
        came = sys.modules.keys() - self._before  # of all there may be thousands
        own = {name for name in came if self._has(name, sys.modules[name])} | self._modules.keys() & sys.modules.keys()
        self._modules = {name: sys.modules.pop(name) for name in own}

    def _has(self, name: str, module: object) -> bool:
        """Whether a module was made of the version's files."""
        if name.partition(".")[0] == self._name:
            return True
        with contextlib.suppress(Exception):  # what libraries put there in place of modules may raise anything
            places = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", ())]
            return any(f"{place}{os.sep}".startswith(self._prefix) for place in places)
        return False


def _print_to(log: str) -> None:
    """Send what is printed to a file, for this account alone. A link is not followed: then it goes nowhere."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        file = os.open(log, flags, 0o600)
    except OSError:
        file = os.open(os.devnull, os.O_WRONLY)
    try:
        for output in (1, 2):
            os.dup2(file, output)
    finally:
        os.close(file)
