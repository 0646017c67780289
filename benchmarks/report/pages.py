"""BENCHMARKS.md and the page of each section, from stored results. Pure text; measures nothing.

Results that are too noisy are not shown. The time of a fixed matrix product just before must not vary by more than
``MOST``, or nothing of the section is shown (bytes and scores excepted). A row is left out if its repetitions vary by
more than that, on either side or in their ratio, and so are the pictures that show it. All values stay in the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .figures import Row, Section, Series
from .pictures import number, svg
from .results import Result

MOST = 0.2
"""(90th − 10th percentile) ÷ median."""
COLUMNS = ("what", "unit", "marlaas", "other side", "ratio", "goal")
HEAD = f"""\
# Benchmarks

Written by `make bench`; do not edit. Each figure is a median; the brackets hold the lowest and the highest of its
repetitions, and a figure without brackets was measured once or never varied. If marlaas is compared with something
else, both were measured in one go, in turns on the same machine, and ratios are taken pair by pair: 2 × is twice as
good as the other side, below 1 × is worse.

Noise is (90th − 10th percentile) ÷ median. It is taken of a row's repetitions and of their ratios, and of one and the
same matrix product on the machine just before. Nothing that was measured with more than {MOST:.0%} of it is published.

`make bench BENCH=one_task` measures one section again and leaves the others. `BENCH='one_task --quick'` tries it out
and publishes nothing. Figures of benchmarks that were deleted are in [Earlier figures](benchmarks/results/earlier.md).
"""


@dataclass(frozen=True)
class Pick:
    """A row of the headline: its section, its name, a part of the other side's name, and what the headline calls it."""

    section: str
    row: str
    other: str
    what: str

    def of(self, rows: Sequence[Row]) -> Row | None:
        """The row in question."""
        return next((row for row in rows if row.what == self.row and self.other in row.other), None)


_MAKESPAN, _SEQUENCE = "32 tasks, from submission to the end of the last", "one after another"
_EIGHT = "8 tasks of 20 steps, from nothing to all done, shipped defaults"
PICKS = (
    Pick("concurrency", f"{_MAKESPAN}, shipped defaults", _SEQUENCE, "32 tasks with slow tools, at once"),
    Pick("compute_mix", _MAKESPAN, _SEQUENCE, "32 tasks that only compute, at once"),
    Pick(
        "trajectories",
        "a step, deviation 1 s: each episode by itself",
        "turn by turn",
        "a synchronous step of episodes whose tools take 0.5 ± 1 s",
    ),
    Pick(
        "trajectories",
        "a step, deviation 0.3 s, 20% fail or hang: the same, redundant 2",
        "each episode by itself",
        "the same where 20 % of the tools fail, two redundant members",
    ),
    Pick("eight_trl", _EIGHT, _SEQUENCE, "8 tasks of 20 steps"),
    Pick("eight_trl", _EIGHT, "all at once", "8 tasks of 20 steps"),
    Pick(
        "one_task",
        "a step: prompts of 13 tokens, 1 core, staleness 0",
        "TRL",
        "a synchronous step on one core, prompts of 13 tokens",
    ),
    Pick(
        "one_task",
        "a step: prompts of 256 tokens, 1 core, staleness 0",
        "TRL",
        "a synchronous step on one core, prompts of 256 tokens",
    ),
    Pick(
        "one_task",
        "start to step 40: prompts of 13 tokens, 2 cores, staleness 2",
        "TRL",
        "from the command to step 40 on two cores",
    ),
    Pick("real", "number: a step", "TRL", "a step of SmolLM2-135M, short replies"),
    Pick("real", "facts: a step", "TRL", "a step of SmolLM2-135M, replies in JSON"),
    Pick("half_billion_step", "a step: default settings", "TRL", "a step of a base of 0.5 B"),
    Pick("quality", "held-out score, mean of all tasks, at once", _SEQUENCE, "what 32 tasks learn at once"),
    Pick("quality", "held-out score, sums, at once", "TRL", "what 8 of them learn at once, on sums"),
    Pick(
        "weight_sync",
        "a step: the shipped base, torch, staleness 2, 0 ms of delay",
        "blocking",
        "a step of one task, published beside the next one",
    ),
    Pick("gateway", "64 conversations at once", "bare", "64 conversations through the gateway"),
    Pick("terminal", "first paint", "an empty", "first paint of the terminal application"),
)


def spread(series: Series, sign: str = "") -> str:
    """Median, lowest and highest."""
    middle = f"{number(series.middle)}{sign}"
    return middle if series.low == series.high else f"{middle} [{number(series.low)}–{number(series.high)}]"


def line(*cells: str) -> str:
    """One line of a table."""
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def grid(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown."""
    return "\n".join([line(*titles), line(*["---"] * len(titles)), *(line(*row) for row in rows)])


def table(section: Section) -> str:
    """The section's rows; columns that would be empty throughout are left out."""
    rows = [_cells(row) for row in section.rows]
    used = [place for place in range(len(COLUMNS)) if any(row[place] for row in rows)]
    return grid([COLUMNS[place] for place in used], [[row[place] for place in used] for row in rows])


def _cells(row: Row) -> tuple[str, ...]:
    other = f"{spread(row.theirs)} {row.other}".strip() if row.theirs else ""
    return (row.what, row.unit, spread(row.ours), other, spread(row.ratio, " ×") if row.ratio else "", row.goal)


@dataclass(frozen=True)
class Published:
    """What may be shown of a section; ``reason`` says below the table what was left out."""

    section: Section
    left_out: tuple[Row, ...] = ()
    reason: str = ""


def published(result: Result) -> Published:
    """Rows that are quiet enough, measured on a machine that is."""
    section = result.section
    if section.timed and result.machine.noise > MOST:
        reason = (
            f"**Left out.** Nothing of this section is published: the machine had a noise of {result.machine.noise:.0%}"
            f" just before, and the limit is {MOST:.0%}."
        )
        return Published(replace(section, rows=(), remarks="", pictures=()), section.rows, reason)
    noisy = tuple(row for row in section.rows if row.noise > MOST)
    if not noisy:
        return Published(section)
    names = (f"{row.what}{f', beside {row.other}' * bool(row.other)} ({row.noise:.1%})" for row in noisy)
    reason = f"**Left out**, because it was measured with more than {MOST:.0%} noise: {'; '.join(names)}."
    quiet = tuple(row for row in section.rows if row not in noisy)
    what = {row.what for row in noisy}
    pictures = tuple(picture for picture in section.pictures if not what.intersection(picture.rows))
    remarks = "\n".join(text for text in section.remarks.split("\n") if not _shows(text, noisy))
    return Published(replace(section, rows=quiet, remarks=remarks, pictures=pictures), noisy, reason)


def _shows(text: str, noisy: Sequence[Row]) -> bool:
    """Whether a line of a table in the remarks shows one side of a noisy row again, by its first cell."""
    cell = text.split("|")[1].strip() if text.startswith("|") else ""
    case, _, who = cell.rpartition(", ")
    theirs = (row for row in noisy if case and row.theirs and (row.theirs.noise or 0.0) > MOST)
    return bool(cell) and (
        any(row.what.endswith(cell) for row in noisy)
        or any(case in row.what and row.other.startswith(who) for row in theirs)
    )


def front(results: Sequence[Result], folder: str) -> str:
    """BENCHMARKS.md; the pages of sections lie in ``folder``, a relative path that ends in a slash, or nothing."""
    if not results:
        return f"{HEAD}\nNothing has been measured yet.\n"
    lines = []
    for result in results:
        shown = published(result)
        count = len(shown.section.rows)
        rows = "1 row" if count == 1 else f"{count or 'no'} rows"
        noisy = f", {len(shown.left_out)} left out for their noise" if shown.left_out else ""
        lines.append(f"- [{result.section.title}]({folder}{result.section.name}.md): {rows}{noisy}")
    parts = [HEAD, "## Headline", headline(results, folder), "## Sections", "\n".join(lines)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def headline(results: Sequence[Result], folder: str) -> str:
    """The rows that say most, for better and for worse, and a line that names what is too noisy for this table."""
    lines, left_out = [], []
    by_name = {result.section.name: result for result in results}
    for pick in PICKS:
        if (result := by_name.get(pick.section)) is None or (measured := pick.of(result.section.rows)) is None:
            continue
        link = f"[{pick.what}]({folder}{pick.section}.md)"
        row = pick.of(published(result).section.rows)
        if row is None:
            left_out.append(f"{link} ({_percent(max(measured.noise, result.machine.noise))})")
            continue
        assert row.theirs and row.ratio, "a pick has another side"
        noise = "measured once" if row.ratio.noise is None else _percent(row.ratio.noise)
        name = result.machine.cpu.replace("(R)", "").replace("(TM)", "").removesuffix(" Processor").strip()
        _, unit, ours, other, ratio, _ = _cells(row)
        lines.append((link, unit, ours, other, ratio, noise, f"{name}, {result.machine.cores} cores"))
    titles = ("what", "unit", "marlaas", "other side", "ratio", "noise", "machine")
    shown = grid(titles, lines) if lines else "None of the rows of this table is published."
    below = f"\n\nToo noisy for this table, with their noise: {', '.join(left_out)}." if left_out else ""
    return shown + below


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 else "< 1%"


def sections(results: Sequence[Result], front: str, drawn: str = "pictures") -> dict[str, str]:
    """The page of each section, by name. ``front`` and ``drawn`` are the relative paths of BENCHMARKS.md and of the
    folder of pictures."""
    return {result.section.name: _page(result, front, drawn) for result in results}


def pictures(results: Sequence[Result]) -> dict[str, str]:
    """The SVG of each picture that may be shown, by name."""
    return {picture.name: svg(picture) for result in results for picture in published(result).section.pictures}


def _page(result: Result, front: str, drawn: str) -> str:
    shown, machine = published(result), result.machine
    section = shown.section
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    parts = [
        f"# {section.title}",
        f"Written by `make bench`; do not edit. How to read it: [Benchmarks]({front}).",
        f"Measured on {result.date} UTC at commit {result.commit}: {machine.cpu}, {machine.cores} cores,"
        f" {machine.memory_gib:.0f} GiB. One core computed {machine.gflops:.0f} GFLOP/s in float32 (1024 × 1024"
        f" matrices), with a noise of {machine.noise:.0%}; {machine.load:.1f} processes wanted a core in the minute"
        f" before. With {versions}.",
        table(section) if section.rows else "",
        shown.reason,
        *(f"![{picture.title}]({drawn}/{picture.name}.svg)\n\n{picture.text}" for picture in section.pictures),
        f"**Method.** {section.method.strip()}",
        section.remarks,
    ]
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"
