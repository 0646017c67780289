"""``python -m tools.pythons``: the tests under each other Python that marlaas promises, without PyTorch and llama.cpp.

Run by ``make test-slow-pythons``; standard library only. Each Python of this machine gets an environment in
``.pythons``, made once, a log and a line of counts, and a last line sums all up. A test that would import PyTorch is
skipped (``without_torch``); one whose child processes would is left out, by its mark or with its folder.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from ..steps import HASHES, ROOT, StepFailed, checked, fail, last_complaint, pip, step

PROMISED = ("3.11", "3.12", "3.13")
FOLDER = ROOT / ".pythons"
PLACES = (".pyenv/versions/{0}*/bin/python{0}", ".local/share/uv/python/cpython-{0}*/bin/python{0}")
"""Where pyenv and uv keep their Pythons, below the person's folder."""
KINDS = ("passed", "failed", "skipped")


def main() -> int:
    """Test under each Python, one after the other."""
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    total: Counter[str] = Counter()
    tried = 0
    for version in PROMISED:
        if version == own:
            continue  # `make test` does that one
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
    """An interpreter of this version that runs: on the PATH, else pyenv's, else uv's."""
    on_path = shutil.which(f"python{version}")
    kept = (path for place in PLACES for path in sorted(Path.home().glob(place.format(version)), reverse=True))
    for python in [*([on_path] if on_path else []), *map(str, kept)]:
        code = "import sys, ssl; print(f'{sys.version_info.major}.{sys.version_info.minor}')"
        done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True)
        if done.stdout.strip() == version:
            return python
    return None


def made(version: str, python: str) -> Path:
    """The Python of an environment with all listed packages but PyTorch, llama.cpp and those for cards."""
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
    """Run the rounds of ``make test``; prints the tests that failed, the rest goes to the log."""
    log = FOLDER / f"{version}.log"
    environment = os.environ | {"PYTEST_ADDOPTS": "-p tools.pythons.without_torch -p no:cacheprovider"}
    with log.open("wb") as file:
        command = [str(python), "-m", "tools.suite"]
        subprocess.run(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    said = log.read_text(encoding="utf-8", errors="replace")
    counts = counted(said)
    if counts["failed"]:
        print(*(f"  {line}" for line in failures(said)), f"  The log is {log}.", sep="\n")
    return counts


def counted(said: str) -> Counter[str]:
    """The counts of pytest's closing line; a missing line counts as a failure."""
    last = (said.splitlines() or [""])[-1]
    found = {kind: int(number) for number, kind in re.findall(r"(\d+) (\w+)", last)}
    return Counter(found if found.keys() == set(KINDS) else {"failed": 1})


def failures(said: str) -> Iterator[str]:
    """The lines that name what failed."""
    return (line for line in said.splitlines() if line.startswith(("FAILED ", "ERROR ")))


def in_words(counts: Counter[str]) -> str:
    """The counts as a closing line."""
    return ", ".join(f"{counts[kind]} {kind}" for kind in KINDS)


if __name__ == "__main__":
    sys.exit(main())
