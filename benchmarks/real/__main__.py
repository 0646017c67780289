"""``python -m benchmarks.real PART [--minutes 60]``: one part of the measurements on the real model.

A part stores each run when it ends. If its time is over, the same command continues; its exit code is then 75.
``python -m benchmarks real`` publishes what is stored, after measuring what is missing.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from .. import ROOT
from .runs import ALONE, AT_ONCE, ENVIRONMENTS, LONGEST, SEEDS, STEPS, THEIRS, TOGETHER, TOKENS, compare, train

STORED = ROOT / "benchmarks" / "results" / "data" / "real"
PARTS = (*(f"{THEIRS}_{name}" for name in TOKENS), *(f"{ALONE}_{name}" for name in ENVIRONMENTS), AT_ONCE)
UNFINISHED = 75
"""``EX_TEMPFAIL``: the same command continues."""


def measure(part: str, folder: Path, deadline: float, steps: int = 0) -> bool:
    """Measure what is missing of a part until ``deadline``, by the monotonic clock; whether all is there."""
    kind, _, name = part.rpartition("_")
    if kind == THEIRS:
        return compare(name, folder, deadline, (1, steps) if steps else (SEEDS, STEPS))
    if part == AT_ONCE:
        return train(ENVIRONMENTS, AT_ONCE, folder, deadline, steps or TOGETHER)
    return train((name,), ALONE, folder, deadline, steps or LONGEST)


def main() -> int:
    """Measure one part; 0 if all of it is stored."""
    words = argparse.ArgumentParser(prog="python -m benchmarks.real", description=__doc__.split("\n")[0])
    words.add_argument("part", choices=PARTS)
    words.add_argument("--minutes", type=float, default=57.0, help="time after which it stops, to be continued")
    words.add_argument("--steps", type=int, default=0, help="try it out: fewer steps, one seed; publishes nothing")
    words.add_argument("--out", type=Path, help="keep results there instead of publishing them")
    options = words.parse_args()
    if options.steps and not options.out:
        words.error("--steps needs --out FOLDER: what it measures is not to be published")
    whole = measure(options.part, options.out or STORED, time.monotonic() + 60 * options.minutes, options.steps)
    print(f"{options.part}: {'complete' if whole else 'to be continued by the same command'}.")
    return 0 if whole else UNFINISHED


if __name__ == "__main__":
    sys.exit(main())
