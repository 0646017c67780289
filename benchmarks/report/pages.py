"""BENCHMARKS.md, from the results that lie in ``benchmarks/results``. Pure text; measures nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .figures import Row, Section, Series
from .machine import Machine
from .results import Result

HEAD = """\
# Benchmarks

Written by `make bench`; do not edit. Every figure is a median, with the lowest and the highest of its repetitions in
brackets. Where there is another side, both were measured in one go, turn by turn on the same machine, and ratios are
taken pair by pair: 2 × is twice as good as the other side, below 1 × is worse.

`make bench BENCH=one_task` measures one section anew and leaves the others; `BENCH='one_task --quick'` tries it out
and publishes nothing.
"""
UNMEASURED = {
    "gpu": """\
## On a card

No card was available: nothing in this file was measured on one, and nothing is claimed of one. On a machine with a card
of NVIDIA's, `make bench BENCH=gpu` measures in under ten minutes, on a base of random weights of the shape of
Qwen2.5-0.5B: tokens per second sampled and trained with 1, 8 and 32 adapters, as shares of the card's measured limits;
fused against time-sliced training; 32 tasks at once against one after another. The script was tried on a processor,
with `python -m benchmarks.large_base.card --device cpu --shape mini`.
"""
}
"""Sections in the place of results that are not there, by the name of the benchmark."""
COLUMNS = ("what", "unit", "marlaas", "other side", "ratio", "goal")


def markdown(results: Sequence[Result]) -> str:
    """The whole file."""
    if not results:
        return f"{HEAD}\nNothing has been measured yet.\n"
    kept = {result.section.name for result in results}
    missing = (text for name, text in UNMEASURED.items() if name not in kept)
    parts = [HEAD, "## Machines\n", machines(results), *(_section(result) for result in results), *missing]
    return "\n".join(part.rstrip() + "\n" for part in parts)


def machines(results: Sequence[Result]) -> str:
    """One line for each section: where, when and on what it was measured, and how quiet it was there."""
    lines = [
        "`fp32`: measured rate of one core (1024 × 1024 matrices). `noise`: (90th − 10th percentile) ÷ median of the"
        " time of one and the same product. `load`: processes that wanted a core in the minute before.",
        "",
        _line("section", "measured", "commit", "processor", "cores", "memory", "fp32", "noise", "load"),
        _line(*["---"] * 9),
    ]
    for result in results:
        lines.append(_line(result.section.name, f"{result.date} UTC", result.commit, *_machine(result.machine)))
    newest = max(results, key=lambda result: result.date)
    versions = ", ".join(f"{name} {number}" for name, number in newest.versions.items())
    return "\n".join([*lines, "", f"With {versions}."])


def table(section: Section) -> str:
    """The section's rows; columns that would be empty throughout are left out."""
    rows = [_cells(row) for row in section.rows]
    used = [place for place in range(len(COLUMNS)) if any(row[place] for row in rows)]
    lines = [_line(*(COLUMNS[place] for place in used)), _line(*["---"] * len(used))]
    return "\n".join([*lines, *(_line(*(row[place] for place in used)) for row in rows)])


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    decimals = 2 - math.floor(math.log10(abs(value))) if value else 0
    return f"{value:,.{max(0, decimals)}f}"


def spread(series: Series, sign: str = "") -> str:
    """Median, lowest and highest."""
    middle = f"{number(series.middle)}{sign}"
    return middle if series.low == series.high else f"{middle} [{number(series.low)}–{number(series.high)}]"


def _section(result: Result) -> str:
    section = result.section
    parts = [f"## {section.title}", table(section), f"**Method.** {section.method.strip()}", section.remarks.strip()]
    return "\n\n".join(part for part in parts if part)


def _cells(row: Row) -> tuple[str, ...]:
    other = f"{spread(row.theirs)} {row.other}".strip() if row.theirs else ""
    ratio = spread(row.ratio, " ×") if row.ratio else ""
    return (row.what, row.unit, spread(row.ours), other, ratio, row.goal)


def _machine(machine: Machine) -> tuple[str, ...]:
    return (
        machine.cpu,
        str(machine.cores),
        f"{machine.memory_gib:.0f} GiB",
        f"{machine.gflops:.0f} GFLOP/s",
        f"{machine.noise:.0%}",
        f"{machine.load:.1f}",
    )


def _line(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
