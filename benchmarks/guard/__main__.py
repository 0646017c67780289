"""``python -m benchmarks.guard [--write]``: count what the hot paths do, and compare it with ``counts.txt``.

Ends with 1 if a count has changed, whether it rose or fell: what fell is written down, too, or it could rise again
unseen. Less than a minute on two free cores.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

from . import engine_run, storing, tensor_work
from .comparison import changes, read, written

COUNTS = Path(__file__).with_name("counts.txt")


def main(arguments: Sequence[str] | None = None) -> int:
    """Count, then compare or write; 0 if nothing has changed."""
    words = argparse.ArgumentParser(prog="python -m benchmarks.guard", description=__doc__.split("\n")[0])
    words.add_argument("--write", action="store_true", help="write the file anew instead of comparing")
    options = words.parse_args(arguments)
    begun = monotonic()
    now = storing.measure() | tensor_work.measure() | engine_run.measure()
    print(f"{len(now)} counts in {monotonic() - begun:.0f} s.")
    return told(read(COUNTS.read_text("utf-8")) if COUNTS.exists() else {}, now, options.write)


def told(before: dict[str, float], now: dict[str, float], write: bool) -> int:
    """Say what has changed, and write it down if that is asked for; the exit code."""
    found = changes(before, now)
    for sentence in found:
        print(sentence)
    if write:
        COUNTS.write_text(written(now), encoding="utf-8")
        print(f"{COUNTS.name} holds the new counts.")
        return 0
    if found:
        print(
            "`make bench-guard WRITE=1` writes them down where that is meant; say in the commit why.", file=sys.stderr
        )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
