"""``python -m tools.audit HOME``: is everything that this home says of its tasks true?

Reads the database and the state files alone, never the engine's code. What cannot be checked, because files or tokens
were given up for room, is counted and named; a home that keeps all sets ``[keep] every = 1`` in its task files and
``token_steps = 0`` under ``[disk]`` in marlaas.toml. Exit code 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path

from .audit import audit


def main(words: Sequence[str] | None = None) -> int:
    """Check one home and print what was found."""
    parser = argparse.ArgumentParser(prog="python -m tools.audit", description=__doc__.split("\n")[0])
    parser.add_argument("home", type=Path, help="the home's folder, with marlaas.db in it")
    parser.add_argument("--base", default="", help="folder or cached name of its base (default: as its engine had it)")
    parser.add_argument("--fast", action="store_true", help="leave out making every step again, which takes a model")
    parser.add_argument("--threads", type=int, default=1, help="cores that making steps again may use (default: 1)")
    options = parser.parse_args(words)
    try:
        report = audit(options.home, options.base, not options.fast, options.threads)
    except (sqlite3.Error, OSError) as error:
        print(f"audit: {options.home} cannot be checked: {error}.", file=sys.stderr)
        return 2
    print("\n".join(report.lines()))
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
