"""Runs another program in the foreground of the terminal, which was given away: Ctrl-C is then for that program alone.

A terminal interrupts every process in its foreground, so the application as well; asyncio would take that as the wish
to leave it.
"""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

_INTERRUPTED = (128 + signal.SIGINT, -signal.SIGINT)
"""Exit codes of a program that Ctrl-C ended."""


def run(command: Sequence[str]) -> int:
    """Run a program and return its exit code; Ctrl-C is the program's. Raises ``OSError`` if it cannot be started."""
    with _on_interrupt(_ignored):
        return subprocess.run(command, check=False).returncode


def hand_over(command: Sequence[str], meanwhile: str) -> None:
    """Run a program, and wait for enter once it has ended, so that its last lines can be read.

    ``meanwhile`` is shown at once, as the program may take long until it prints something. After Ctrl-C nobody is asked
    for enter. Raises ``OSError`` if the program cannot be started.
    """
    print(meanwhile, flush=True)
    if run(command) in _INTERRUPTED:
        return
    with _on_interrupt(signal.default_int_handler), suppress(KeyboardInterrupt, EOFError):
        input("\nEnter goes back to marlaas.")


def _ignored(number: int, frame: FrameType | None) -> None:
    """Do nothing. A function, as the program would inherit ``SIG_IGN``, and could not be interrupted either."""


@contextmanager
def _on_interrupt(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # signals are handled in the main one alone
        yield
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
