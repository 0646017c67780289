"""Writes the pages of the reference, then has Zensical build the site; a link that leads nowhere fails the build."""

from __future__ import annotations

import subprocess
import sys

from .reference import ROOT, write_reference


def main() -> int:
    """Build it, and say where it is."""
    for path in write_reference():
        print(f"wrote {path.relative_to(ROOT)}")
    done = subprocess.run([sys.executable, "-m", "zensical", "build", "--strict", "--clean"], cwd=ROOT)
    if done.returncode == 0:
        print("The site is in build/docs: open build/docs/index.html.")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
