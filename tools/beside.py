"""Environments beside ``.venv`` that have a llama.cpp of their own and take everything else from ``.venv``.

Standard library only. What was compiled is kept for this user.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from .llama import build_key, build_llama, reason
from .processor import instruction_sets
from .steps import HASHES, LOG, ROOT, Impossible, StepFailed, alone, fail, minutes, pip, step


def stands(venv: Path, flags: str) -> bool:
    """Whether the environment is there, made as it would be made today."""
    stamp = venv / ".installed"
    return stamp.exists() and stamp.read_text() == _wanted(flags)


def make(venv: Path, flags: str, words: str) -> int:
    """Make the environment, unless it is there; ``words`` describe it and how long that takes. Returns an exit code."""
    if stands(venv, flags):
        return 0
    print(f"Into {venv}: {words}.", flush=True)
    started = time.monotonic()
    try:
        _install(venv, flags)
    except (StepFailed, Impossible) as error:
        return fail(f"Set-up stopped: {reason(error)}", f"The whole log is {LOG}.")
    (venv / ".installed").write_text(_wanted(flags))
    print(f"Set-up is done after {minutes(time.monotonic() - started)}.", flush=True)
    return 0


def _install(venv: Path, flags: str) -> None:
    python = venv / "bin" / "python"
    if not python.exists():
        step(f"making {venv.name}", [sys.executable, "-m", "venv", str(venv)])
    step("installing llama.cpp", pip(*alone(build_llama(build_key(flags), flags)), python=python))
    site = next((venv / "lib").glob("python*/site-packages"))
    rest = next((ROOT / ".venv" / "lib").glob("python*/site-packages"))
    (site / "rest.pth").write_text(f"import site; site.addsitedir({str(rest)!r})\n", encoding="utf-8")


def _wanted(flags: str) -> str:
    """A fingerprint that changes whenever an installation would give something else."""
    return f"{sys.version} {instruction_sets()} {flags} {(HASHES / 'llama.txt').read_text(encoding='utf-8')}"
