"""Whether the set-up still compiles llama.cpp for this Python's environment, and why it could not be compiled.

``tools/llama.py`` leaves both in the environment: a file of facts, and a lock that its process holds while it works, so
that one that was killed is known as such. Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

STATE, LOCK = ".llama-state", ".llama-lock"
INTERRUPTED = "it was interrupted"

State = Literal["compiling", "done", "failed"]


@dataclass(frozen=True)
class LlamaBuild:
    """The newest attempt at installing llama.cpp."""

    state: State
    seconds: float
    """How long it has taken so far, or took."""
    ended: float = 0.0
    """When it ended, in seconds since 1970; 0 while it goes on, and where that is not known."""
    reason: str = ""
    """Why it failed."""
    log: str = ""
    """The file with what the compiler printed."""


def llama_build(folder: Path | None = None, now: float | None = None) -> LlamaBuild | None:
    """The attempt in an environment's ``folder``, by default this Python's; None where none is known of.

    ``now`` is in seconds since 1970. It costs the reading of a small file; a file that makes no sense is none.
    """
    folder = folder or Path(sys.prefix)
    try:
        facts = json.loads((folder / STATE).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(facts, dict) or facts.get("state") not in ("compiling", "done", "failed"):
        return None
    began, ended = _number(facts, "began"), _number(facts, "ended")
    state, reason = facts["state"], str(facts.get("reason", ""))
    if state == "compiling" and not _held(folder / LOCK):
        state, reason = "failed", INTERRUPTED
    until = (time.time() if now is None else now) if state == "compiling" else ended
    return LlamaBuild(state, max(0.0, until - began) if until else 0.0, ended, reason, str(facts.get("log", "")))


def why_missing(build: LlamaBuild | None) -> tuple[str, str]:
    """Why llama.cpp is not there, as a clause, and what to do, for an error; both empty where nothing is known."""
    if build is None or build.state == "done":
        return "", ""
    log = f" The log is {build.log}." if build.log else ""
    if build.state == "compiling":
        return f"it is still being compiled, {_minutes(build.seconds)} so far", f"Try again once it is there.{log}"
    return f"it could not be compiled: {build.reason.rstrip('.')}", f"`make install` tries again.{log}"


def _minutes(seconds: float) -> str:
    return f"{seconds // 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"


def _number(facts: dict[str, Any], name: str) -> float:
    value = facts.get(name, 0.0)
    return float(value) if isinstance(value, int | float) else 0.0


def _held(path: Path) -> bool:
    """Whether a process holds the lock."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return True  # a file system without locks cannot tell
    finally:
        with contextlib.suppress(OSError):
            os.close(file)
    return False
