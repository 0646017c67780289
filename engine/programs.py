"""Runs programs to their end and returns their output; names signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
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


def run_module(module: str, *arguments: str, seconds: float, environment: Mapping[str, str]) -> tuple[bytes, str]:
    """What a module of ours prints as a program, and why it failed; empty: it did not.

    ``environment`` is all that it gets. Libraries in it may hang or crash.
    """
    command = [sys.executable, "-P", "-m", module, *arguments]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, env=environment, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        return error.stdout or b"", f"it gave no answer within {seconds:g} s"
    except OSError as error:
        return b"", str(error)
    if not done.returncode:
        return done.stdout, ""
    complaint = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return done.stdout, complaint[-1][:300] if complaint else f"it ended with status {done.returncode}"


def signal_name(number: int) -> str:
    """A signal's name, or its number if this platform has no name for it."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        return str(number)
    return f"{name} (illegal instruction)" if number == signal.SIGILL else name
