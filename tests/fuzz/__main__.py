"""``python -m tests.fuzz [--minutes N] [--seed N] [NAME…]``: each border meets changed inputs for its share of time.

Prints how many inputs each of them met. A fault is printed with its input, and with the seed that draws it again.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import sys
import time
import traceback

import hypothesis
from hypothesis import HealthCheck, given, settings

from .borders import BINARIES, FOLDER, FRAMES, TEXTS, Border
from .gateway import GATEWAY
from .grammars import SCHEMAS
from .requests import REQUESTS

BORDERS = (*FRAMES, *TEXTS, *BINARIES, *REQUESTS, *GATEWAY, *SCHEMAS)
ROUND = 200
"""Inputs that one seed draws."""
MEMORY = 4 << 30
"""Address space: what takes more without end fails here, and is a fault."""


def main() -> int:
    """Meet all that are named, or all."""
    names = [border.name for border in BORDERS]
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="for all borders together (default: 10)")
    parser.add_argument("--seed", type=int, default=None, help="of the first round (default: another one each time)")
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"of borders: {', '.join(names)} (default: all)")
    given_ = parser.parse_args()
    if unknown := set(given_.names) - set(names):
        parser.error(f"there is no border {sorted(unknown)[0]!r}; there are {', '.join(names)}")
    chosen = [border for border in BORDERS if not given_.names or border.name in given_.names]
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    seed = random.SystemRandom().randrange(1 << 32) if given_.seed is None else given_.seed
    faults = 0
    for border in chosen:
        faults += fuzz(border, 60 * given_.minutes / len(chosen), seed)
    print(f"{faults} faults at {len(chosen)} borders.", flush=True)
    shutil.rmtree(FOLDER, ignore_errors=True)
    sys.stdout.flush()
    os._exit(1 if faults else 0)  # the server of the requests has a thread of its own


def fuzz(border: Border, seconds: float, seed: int) -> int:
    """Whether a fault was found; the first one ends the border's turn."""
    began, met = time.monotonic(), 0
    while time.monotonic() - began < seconds:

        @hypothesis.seed(seed)
        @settings(
            max_examples=ROUND,
            deadline=None,
            derandomize=False,
            database=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        )
        @given(border.inputs())
        def round_(data: bytes) -> None:
            nonlocal met
            met += 1
            border.meet(data)

        try:
            round_()
        except BaseException:
            traceback.print_exc(limit=-4)
            print(f"{border.name}: a fault after {met:,} inputs. Again: --seed {seed} '{border.name}'", flush=True)
            return 1
        seed += 1
    print(f"{border.name}: {met:,} inputs in {time.monotonic() - began:.0f} s, no fault", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
