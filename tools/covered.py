"""``python -m tools.covered``: the whole suite once more, while its lines are counted.

Writes the share of all lines that ran into ``tests/coverage.txt``, which ``make check`` prints. Fails if a test does,
or if the share has fallen by more than ``SLACK``. Lines of processes that end by ``kill -9`` are not counted, nor those
of plugins' processes, which see none of the suite's environment variables.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "tests" / "coverage.txt"
SLACK = 0.5
"""Points by which two runs of the same tests may differ: some lines run only if processes end in a certain order."""


def main() -> int:
    """Run, count, compare, and write."""
    code = _coverage("erase").returncode or _coverage("run", "-m", "tools.suite").returncode
    _coverage("combine", "--quiet")
    share, known = float(_coverage("report", "--format=total").stdout), recorded(RECORD)
    if known is not None and share < known - SLACK:
        print(f"{share} % of all lines ran, {known} % did before. Test what is new: `coverage report` names the lines.")
        return 1
    if not code:
        RECORD.write_text(sentence(share))
    print(sentence(share), end="")
    return code


def sentence(share: float) -> str:
    """What ``make check`` prints."""
    return f"{share} % of all lines of app, engine and plugins run in the suite (`make coverage` counts anew).\n"


def recorded(path: Path) -> float | None:
    """The share that was written last; None if there is no such file, or an empty one."""
    words = path.read_text(encoding="utf-8").split() if path.exists() else []
    return float(words[0]) if words else None


def _coverage(*words: str) -> subprocess.CompletedProcess[str]:
    stdout = subprocess.PIPE if words[0] == "report" else None
    return subprocess.run([sys.executable, "-m", "coverage", *words], cwd=ROOT, stdout=stdout, text=True)


if __name__ == "__main__":
    sys.exit(main())
