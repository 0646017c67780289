"""``python -m benchmarks [NAME …] [--quick]``: measure, keep the results, write BENCHMARKS.md and its pages.

Each benchmark runs in a fresh process, so that none inherits another's threads, caches or pinned cores. One that fails
costs itself alone.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from time import monotonic

from . import ROOT, runner
from .report import pages, results
from .report.figures import Unmeasurable

NAMES = tuple(runner.MODULES)
PUBLISHED = ROOT / "benchmarks" / "results"
PICTURES = "docs/measured"
"""Where published pictures lie, within the repository: what is not in ``docs`` cannot be shown there."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for; 0 only if all of it could be measured."""
    words = parser()
    options = words.parse_args(arguments)
    if unknown := sorted(set(options.names) - set(NAMES)):
        words.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(NAMES)}")
    folder = options.out or (Path(tempfile.mkdtemp(prefix="marlaas-bench-")) if options.quick else PUBLISHED)
    chosen = () if options.write else options.names or NAMES
    failed = [name for name in chosen if not run(name, options.quick, folder / "data")]
    write(folder)
    if failed:
        print(f"Not measured: {', '.join(failed)}.", file=sys.stderr)
    return 1 if failed else 0


def write(folder: Path) -> None:
    """BENCHMARKS.md, the page of each section and its pictures, of all results that are kept in the folder."""
    kept = results.load(folder / "data", NAMES)
    if not kept:
        return
    page = ROOT / "BENCHMARKS.md" if folder == PUBLISHED else folder / "BENCHMARKS.md"
    drawn = ROOT / PICTURES if folder == PUBLISHED else folder / "pictures"
    for name, text in pages.sections(kept, os.path.relpath(page, folder), os.path.relpath(drawn, folder)).items():
        (folder / f"{name}.md").write_text(text, encoding="utf-8")
    for name, text in pages.pictures(kept).items():
        drawn.mkdir(parents=True, exist_ok=True)
        (drawn / f"{name}.svg").write_text(text, encoding="utf-8")
    there = folder.relative_to(page.parent)
    page.write_text(pages.front(kept, f"{there}/" if there.parts else ""), encoding="utf-8")
    print(f"{page} shows {', '.join(result.section.name for result in kept)}.")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    words = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.split("\n")[0])
    words.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}")
    words.add_argument("--quick", action="store_true", help="few repetitions; publishes nothing")
    words.add_argument("--write", action="store_true", help="measure nothing; write the pages of what was measured")
    words.add_argument("--out", type=Path, metavar="FOLDER", help="keep results there instead of publishing them")
    return words


def run(name: str, quick: bool, folder: Path) -> bool:
    """Measure one benchmark in its own process and keep what it found; what this machine lacks is no failure."""
    print(f"{name} …", flush=True)
    started = monotonic()
    try:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            section, machine = process.submit(runner.measure, name, quick).result()
    except Unmeasurable as missing:
        print(f"{name} is not measured here: {missing}")
        return True
    except BrokenProcessPool:
        print(f"{name} failed: its process died.", file=sys.stderr)
        return False
    except Exception as error:  # whatever a benchmark may raise: the others still run
        print(f"{name} failed: {type(error).__name__}: {error}", file=sys.stderr)
        return False
    results.save(results.stamp(section, machine, ROOT), folder)
    print(f"{pages.table(section)}\n{name} took {monotonic() - started:.0f} s.", flush=True)
    return True


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
