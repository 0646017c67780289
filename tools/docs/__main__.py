"""Writes the pages of the reference, lays out all pages and has Zensical build the site.

A link that leads nowhere, or a page that fetches anything, fails the build.
"""

from __future__ import annotations

import subprocess
import sys

from .offline import fetched_by
from .pages import write_pages
from .reference import ROOT, write_reference

SITE = ROOT / "build" / "docs"


def main() -> int:
    """Build the site, and say where it is."""
    for path in write_reference():
        print(f"wrote {path.relative_to(ROOT)}")
    write_pages()
    done = subprocess.run([sys.executable, "-m", "zensical", "build", "--strict", "--clean"], cwd=ROOT)
    if done.returncode:
        return done.returncode
    if found := fetched_by(SITE):
        print("These pages would fetch something:", *found, sep="\n  ", file=sys.stderr)
        return 1
    print("The site is in build/docs: open build/docs/index.html.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
