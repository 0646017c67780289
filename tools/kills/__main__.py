"""``python -m tools.kills [--kills N]``: kill processes of real engines, and prove that nothing was lost or doubled.

One uninterrupted run is the measure for tasks that are repeatable to the last bit. Then every run kills its share in a
home of its own, lets the tasks finish, and has ``tests.oracle`` check the home. The last run also gives up tokens
for room, so that this, too, is interrupted. Exit code 1 if anything is wrong; homes are then kept and named.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

from marlaas.engine.errors import MarlaasError
from marlaas.engine.faults import Point, Reached, recorded
from tests.oracle.audit import audit

from .campaign import Points, finish, kill_many
from .lab import Lab
from .tally import Kill, table
from .tasks import exact

LEAN_TOKEN_STEPS = 3
"""Of the last run; the others keep all tokens, so that every step can be made again."""
SHRINKING = frozenset({Point.SHRINK_INSIDE, Point.SHRINK_DONE})


def main(words: Sequence[str] | None = None) -> int:
    """Run the campaign and print what was found."""
    parser = argparse.ArgumentParser(prog="python -m tools.kills", description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=200, help="deaths over all runs (default: 200)")
    parser.add_argument("--runs", type=int, default=4, help="homes that they are spread over (default: 4)")
    parser.add_argument("--seed", type=int, default=0, help="of moments, victims and points (default: 0)")
    parser.add_argument("--out", type=Path, help="folder for the homes (default: a temporary one)")
    options = parser.parse_args(words)
    out = options.out or Path(tempfile.mkdtemp(prefix="marlaas-kills-"))
    begun, problems = monotonic(), []
    measure = _uninterrupted(out / "uninterrupted")
    kills: list[Kill] = []
    record: list[Reached] = []
    tried: Counter[Point] = Counter()
    for run in range(options.runs):
        share = options.kills // options.runs + (run < options.kills % options.runs)
        lean = run == options.runs - 1
        died, reached, wrong = _run(out / f"run-{run}", share, options.seed + run, lean, tried, measure)
        kills += died
        record += reached
        problems += wrong
    print("\n".join(table(kills, record)))
    print(f"{len(kills)} kills in {(monotonic() - begun) / 60:.1f} minutes, seed {options.seed}.")
    for problem in problems:
        print(f"WRONG    {problem}")
    if not problems and not options.out:
        shutil.rmtree(out)
    print(f"{len(problems)} problems; the homes are in {out}." if problems else "Nothing was lost, nothing doubled.")
    return 1 if problems else 0


def _uninterrupted(root: Path) -> list[str]:
    """Checksums of all versions of the exact task in a run that nothing interrupts."""
    lab = Lab.make(root, 0, faults=False)
    lab.submit([exact()])
    finish(lab)
    lab.stop()
    return lab.checksums(1)


def _run(
    root: Path, kills: int, seed: int, lean: bool, tried: Counter[Point], measure: list[str]
) -> tuple[list[Kill], list[Reached], list[str]]:
    """Kill in one home and check it: what died, how often each point was reached, and what is wrong."""
    print(f"{root.name}: {kills} kills, seed {seed}", flush=True)
    rng = random.Random(seed)
    lab = Lab.make(root, LEAN_TOKEN_STEPS if lean else 0, faults=True)
    points = Points(tried, [point for point in Point if lean or point not in SHRINKING], rng)
    died: list[Kill] = []
    problems = []
    try:
        died = kill_many(lab, kills, points, rng, lambda text: print(f"  {text}", flush=True))
        finish(lab)
    except (RuntimeError, MarlaasError) as error:
        problems.append(f"{root.name}: {error}")
    lab.stop()
    problems += [f"{root.name}: the committed version {name} is lost" for name in lab.lost()]
    report = audit(root)
    print("\n".join(f"  {line}" for line in report.lines()), flush=True)
    problems += [f"{root.name}: {problem}" for problem in (*report.problems, *report.lost)]
    for task, file in lab.files.items():
        if file.exact and lab.checksums(task) != measure:
            problems.append(f"{root.name}: task {task} is not bit for bit what it is without kills")
    print(f"  {lab.resumed} pauses for many deaths at one step were resumed", flush=True)
    return died, recorded(lab.folder), problems


if __name__ == "__main__":
    sys.exit(main())
