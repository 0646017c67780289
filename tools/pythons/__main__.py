"""``python -m tools.pythons``: the tests under each other Python that marlaas promises, without PyTorch and llama.cpp.

Run by ``make test-slow-pythons``; standard library only. The Pythons of this machine flow in; for each an environment
in ``.pythons``, made once, a log, and a line of counts flow out, at the end one for all. A test that would import
PyTorch is skipped (``without_torch``); one whose child processes would is left out, by its mark or with its folder.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from ..install import HASHES, ROOT, StepFailed, checked, fail, last_complaint, pip, step

PROMISED = ("3.11", "3.12", "3.13")
WHOLE = ("tests/end_to_end", "tests/slow")
"""Folders whose tests run real engines with all their workers."""
FOLDER = ROOT / ".pythons"
PLACES = (".pyenv/versions/{0}*/bin/python{0}", ".local/share/uv/python/cpython-{0}*/bin/python{0}")
"""Where pyenv and uv keep theirs, below the person's folder."""
ROUNDS = (
    ("--dist", "worksteal", "-m", "not processes and not torch and not slow and not libraries and not vllm"),
    ("--dist", "loadfile", "-m", "processes and not torch and not slow and not libraries and not vllm"),
)
"""As ``make test`` divides them."""
COUNT = re.compile(r"(\d+) (passed|failed|skipped|errors?)\b")
KINDS = ("passed", "failed", "skipped")


def main() -> int:
    """All of them, one after the other."""
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    total: Counter[str] = Counter()
    tried = 0
    for version in PROMISED:
        if version == own:
            continue  # `make test` is for that one
        python = find(version)
        if python is None:
            print(f"Python {version}: not on this machine")
            continue
        try:
            counts = tested(version, made(version, python))
        except StepFailed as error:
            return fail(f"Python {version}: stopped while {error}: {last_complaint()}", "")
        print(f"Python {version}: {in_words(counts)}", flush=True)
        total += counts
        tried += 1
    if not tried:
        return fail("There is no other Python here that marlaas promises.", "Debian, uv and pyenv have them.")
    print(in_words(total))
    return 1 if total["failed"] else 0


def find(version: str) -> str | None:
    """An interpreter that runs and is of this version: on the PATH, else of pyenv, else of uv."""
    on_path = shutil.which(f"python{version}")
    kept = (path for place in PLACES for path in sorted(Path.home().glob(place.format(version)), reverse=True))
    for python in [*([on_path] if on_path else []), *map(str, kept)]:
        code = "import sys, ssl; print(f'{sys.version_info.major}.{sys.version_info.minor}')"
        done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True)
        if done.stdout.strip() == version:
            return python
    return None


def made(version: str, python: str) -> Path:
    """The Python of an environment with all that is listed but PyTorch, llama.cpp and what is for cards."""
    folder = FOLDER / version
    inside, stamp = folder / "bin" / "python", folder / ".installed"
    lists = ("install", "serve", "dev")
    digest = hashlib.sha256(python.encode())
    for path in (ROOT / "pyproject.toml", *(HASHES / f"{name}.txt" for name in lists)):
        digest.update(path.read_bytes())
    if not stamp.exists() or stamp.read_text() != digest.hexdigest():
        step(f"making .pythons/{version}", [python, "-m", "venv", "--clear", str(folder)])
        step("installing what marlaas needs", pip(*checked(*lists), python=inside))
        step("installing marlaas", pip("-e", str(ROOT), "--no-deps", "--no-build-isolation", python=inside))
        stamp.write_text(digest.hexdigest())
    return inside


def tested(version: str, python: Path) -> Counter[str]:
    """Both rounds; what failed is printed, all else is in the log."""
    counts: Counter[str] = Counter()
    log = FOLDER / f"{version}.log"
    said = ""
    for words in ROUNDS:
        command = [str(python), "-m", "pytest", "-q", "-n", "auto", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, "-p", "tools.pythons.without_torch", *words, *(f"--ignore={folder}" for folder in WHOLE)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        said += done.stdout
        counts += counted(done.stdout, done.returncode)
    log.write_text(said, encoding="utf-8")
    for line in failures(said):
        print(f"  {line}")
    if counts["failed"]:
        print(f"  The log is {log}.")
    return counts


def counted(said: str, code: int) -> Counter[str]:
    """The counts of pytest's closing line; a round that ended badly without one counts as a failure."""
    closing = next((line for line in reversed(said.splitlines()) if COUNT.search(line) and " in " in line), "")
    counts: Counter[str] = Counter()
    for number, kind in COUNT.findall(closing):
        counts["failed" if kind.startswith("error") else kind] += int(number)
    if code not in (0, 5) and not counts["failed"]:
        counts["failed"] += 1
    return counts


def failures(said: str) -> Iterator[str]:
    """The lines that name what failed."""
    return (line for line in said.splitlines() if line.startswith(("FAILED ", "ERROR ")))


def in_words(counts: Counter[str]) -> str:
    """The closing line."""
    return ", ".join(f"{counts[kind]} {kind}" for kind in KINDS)


if __name__ == "__main__":
    sys.exit(main())
