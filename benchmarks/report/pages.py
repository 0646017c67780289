"""BENCHMARKS.md and the page of each section, from the results that are kept. Pure text; measures nothing."""

from __future__ import annotations

from collections.abc import Sequence

from . import headline
from .drawing import svg
from .figures import Section
from .noise import MOST, published
from .results import Result
from .tables import table

HEAD = f"""\
# Benchmarks

Written by `make bench`; do not edit. Each figure is a median; the brackets hold the lowest and the highest of its
repetitions, and a figure without brackets was measured once or never varied. Where marlaas stands beside something
else, both were measured in one go, turn by turn on the same machine, and ratios are taken pair by pair: 2 × is twice as
good as the other side, below 1 × is worse.

Noise is (90th − 10th percentile) ÷ median. It is taken of a row's repetitions and of their ratios, and of one and the
same matrix product on the machine just before. Nothing that was measured with more than {MOST:.0%} of it is published.

`make bench BENCH=one_task` measures one section anew and leaves the others. `BENCH='one_task --quick'` tries it out and
publishes nothing.
"""
UNMEASURED = {
    "gpu": """\
# On a card

No card was available: nothing was measured on one, and nothing is claimed of one. On a machine with a card of NVIDIA's,
`make bench BENCH=gpu` measures in under ten minutes, on a base of random weights of the shape of Qwen2.5-0.5B: tokens
per second sampled and trained with 1, 8 and 32 adapters, as shares of the card's measured limits; fused against
time-sliced training; 32 tasks at once against one after another. The script was tried on a processor, with
`python -m benchmarks.large_base.card --device cpu --shape mini`.
"""
}
"""Pages in the place of results that are not there, by the name of the benchmark."""


def front(results: Sequence[Result], folder: str) -> str:
    """BENCHMARKS.md; the pages of sections lie in ``folder``, a relative path that ends in a slash, or nothing."""
    if not results:
        return f"{HEAD}\nNothing has been measured yet.\n"
    parts = [HEAD, "## Headline", headline.table(results, folder), "## Sections", _sections(results, folder)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def sections(results: Sequence[Result], front: str, drawn: str = "pictures") -> dict[str, str]:
    """The page of each section, by name; ``front`` and ``drawn`` are the relative paths of BENCHMARKS.md and of the
    folder of pictures."""
    pages = {result.section.name: _page(result, front, drawn) for result in results}
    return pages | {name: text for name, text in UNMEASURED.items() if name not in pages}


def _sections(results: Sequence[Result], folder: str) -> str:
    lines = []
    for result in results:
        shown = published(result)
        number = len(shown.section.rows)
        rows = "1 row" if number == 1 else f"{number or 'no'} rows"
        noisy = f", {len(shown.left_out)} left out for their noise" if shown.left_out else ""
        lines.append(f"- [{result.section.title}]({folder}{result.section.name}.md): {rows}{noisy}")
    kept = {result.section.name for result in results}
    for name, text in UNMEASURED.items():
        if name not in kept:
            lines.append(f"- [{text.splitlines()[0].strip('# ')}]({folder}{name}.md): not measured yet")
    return "\n".join(lines)


def pictures(results: Sequence[Result]) -> dict[str, str]:
    """The SVG of each picture that may be shown, by name."""
    return {picture.name: svg(picture) for result in results for picture in published(result).section.pictures}


def _page(result: Result, front: str, drawn: str) -> str:
    shown = published(result)
    section = shown.section
    parts = [
        f"# {section.title}",
        f"Written by `make bench`; do not edit. How to read it: [Benchmarks]({front}).",
        measured(result),
        table(section) if section.rows else "",
        shown.reason,
        *(f"![{picture.title}]({drawn}/{picture.name}.svg)\n\n{picture.text}" for picture in section.pictures),
        method(section),
        section.remarks,
    ]
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def method(section: Section) -> str:
    """What ran."""
    return f"**Method.** {section.method.strip()}"


def measured(result: Result) -> str:
    """When, where and on what, and how quiet it was there."""
    machine = result.machine
    versions = ", ".join(f"{name} {number}" for name, number in result.versions.items())
    return (
        f"Measured on {result.date} UTC at commit {result.commit}: {machine.cpu}, {machine.cores} cores,"
        f" {machine.memory_gib:.0f} GiB. One core computed {machine.gflops:.0f} GFLOP/s in float32 (1024 × 1024"
        f" matrices), with a noise of {machine.noise:.0%}; {machine.load:.1f} processes wanted a core in the minute"
        f" before. With {versions}."
    )
