"""Steps of a set-up: a command with its output in a log, and signs of life for the person who waits.

Standard library only, because nothing is installed yet.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
HASHES = ROOT / "constraints" / "hashes"
LOG = ROOT / ".venv-setup.log"
"""What pip and the compiler print in the foreground."""
HEAD = "\n=== "
"""Begins the words of each step in the log."""
MISMATCH = re.compile(r"DO NOT MATCH THE HASHES[^\n]*\n\s+(\S+)")
"""How pip reports a wrong hash, and of which package."""
CAUSE = re.compile(r"(?:^CMake Error|: (?:fatal )?error: |No space left|[Kk]illed signal)")
"""What is the compiler's or CMake's own, not what pip concludes from it."""
TICK = 10.0
"""Seconds between signs of life."""


class StepFailed(Exception):
    """A step of the set-up ended badly; the text is the step's title."""


class Impossible(Exception):
    """What a set-up lacks on this machine: the text explains what, and how it is mended."""


def python_of(venv: Path) -> Path:
    """The interpreter of an environment."""
    return venv / "bin" / "python"


def pip(*arguments: str, python: Path | None = None, into: Path | None = None) -> list[str]:
    """Arguments that call pip inside ``.venv``, or that of another Python; ``into`` is an environment without a pip of
    its own."""
    there = ["--python", str(python_of(into))] if into else []
    return [str(python or python_of(VENV)), "-m", "pip", *there, "install", "--disable-pip-version-check", *arguments]


def checked(*lists: str) -> list[str]:
    """Arguments for pip: install the packages of some lists and no others, each with one of the hashes there."""
    files = [word for name in lists for word in ("-r", str(HASHES / f"{name}.txt"))]
    return ["--require-hashes", "--no-deps", "--only-binary", ":all:", *files]


def alone(wheel: Path) -> list[str]:
    """Arguments for pip: install this one file in place of an installed version."""
    return ["--force-reinstall", "--no-deps", "--no-index", str(wheel)]


def step(title: str, command: list[str], variables: dict[str, str] | None = None) -> None:
    """Run one step with its output in the log and a sign of life every few seconds; ``variables`` are added to its
    environment. Raises ``StepFailed``."""
    print(f"  {title} …", flush=True)
    started = time.monotonic()
    with open(LOG, "ab") as log:
        log.write(f"{HEAD}{title}\n".encode())
        log.flush()
        process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | (variables or {}), cwd=ROOT)
        while True:
            try:
                code = process.wait(TICK)
                break
            except subprocess.TimeoutExpired:
                print(f"    still {title.split(':')[0]}, {minutes(time.monotonic() - started)}", flush=True)
            except BaseException:
                process.terminate()
                process.wait()  # else it may still write into what the next set-up makes
                raise
    if code:
        raise StepFailed(title)


def runs(program: str, path: Path | None = None) -> bool:
    """Whether a line of Python runs without error in a child process, which an illegal instruction may kill."""
    return said(program, path) is not None


def said(program: str, path: Path | None = None) -> str | None:
    """What a line of Python prints in a child process, with ``path`` before its packages; None if it fails."""
    variables = os.environ | ({"PYTHONPATH": str(path)} if path else {})
    done = subprocess.run([str(python_of(VENV)), "-c", program], capture_output=True, text=True, env=variables)
    return done.stdout if done.returncode == 0 else None


def last_complaint() -> str:
    """The last line of the log's last step that gives a reason; the compiler's first one if it is that step."""
    text = LOG.read_text(encoding="utf-8", errors="replace") if LOG.exists() else ""
    text = text[text.rfind(HEAD) + 1 :]
    if found := MISMATCH.search(text):
        return f"the file that came for {found[1]} is not the one that was tested: it has none of its hashes."
    lines = [line.strip() for line in text.splitlines()]
    complaints = [line for line in lines if "error" in line.lower()]
    causes = [line for line in complaints if CAUSE.search(line)]
    return causes[0] if causes else complaints[-1] if complaints else "no reason was given."


def minutes(seconds: float) -> str:
    """A duration in words."""
    return f"{seconds // 60:.0f} min {seconds % 60:.0f} s" if seconds >= 60 else f"{seconds:.0f} s"


def fail(message: str, hint: str) -> int:
    """Print an error in one sentence and how to mend it; the exit code."""
    print(f"{message} {hint}".rstrip(), file=sys.stderr)
    return 1
