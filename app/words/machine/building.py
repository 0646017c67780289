"""What the set-up still does behind the application: llama.cpp that is being compiled. Pure."""

from __future__ import annotations

from pathlib import Path

from marlaas.engine.devices import LlamaBuild

from ..format import duration, short_path

DONE, FAILED = 60.0, 600.0
"""Seconds for which the end of it is told."""


def llama_note(build: LlamaBuild | None, now: float, watched: bool) -> str:
    """What to tell at the time ``now``, in seconds since 1970; empty where there is nothing.

    ``watched``: it was told before that it is being compiled, so its good end is worth a word.
    """
    if build is None:
        return ""
    since = now - build.ended
    if build.state == "compiling":
        return f"compiling llama.cpp in the background, {duration(float(int(build.seconds)))}"
    if build.state == "done":
        return f"llama.cpp is compiled, after {duration(float(int(build.seconds)))}" if watched and since < DONE else ""
    if build.ended and since > FAILED:
        return ""
    log = f" (log {short_path(Path(build.log))})" if build.log else ""
    return f"llama.cpp could not be compiled{log}: {build.reason}"
