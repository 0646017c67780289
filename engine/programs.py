"""Runs programs to their end and returns their output; names signals."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence


def run_program(
    command: Sequence[str], seconds: float, environment: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Exit status and output of a program; ``environment`` is added to this process's.

    Raises ``TimeoutError`` after ``seconds``, and ``OSError`` if it cannot be run.
    """
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | dict(environment or {}),
            timeout=seconds,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"no answer within {seconds:g} s") from None
    return done.returncode, done.stdout


def signal_name(number: int) -> str:
    """A signal's name, or its number if this platform has no name for it."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        return str(number)
    return f"{name} (illegal instruction)" if number == signal.SIGILL else name
