"""What is too noisy to be published: results flow in, what may be shown flows out, with what is left out and why.

Two things decide. Where the time of one and the same product wavered by more than ``MOST`` just before, the machine was
not quiet, and the whole section is left out, unless its figures are no times. A row is left out where its repetitions
waver by more than that, on either side or in their ratio, and so are the pictures that show it. All values stay in the
results' own files.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .figures import Row, Section
from .results import Result

MOST = 0.2
"""(90th − 10th percentile) ÷ median."""


@dataclass(frozen=True)
class Published:
    """What may be shown of a section."""

    section: Section
    left_out: tuple[Row, ...]
    reason: str
    """In words, for below the table; empty where all is shown."""


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
        return Published(section, (), "")
    named = "; ".join(f"{_named(row)} ({row.noise:.1%})" for row in noisy)
    reason = f"**Left out**, because it was measured with more than {MOST:.0%} noise: {named}."
    quiet = tuple(row for row in section.rows if row not in noisy)
    loud = {row.what for row in noisy}
    pictures = tuple(picture for picture in section.pictures if not loud.intersection(picture.rows))
    shown = replace(section, rows=quiet, remarks=_without(section.remarks, noisy), pictures=pictures)
    return Published(shown, noisy, reason)


def _named(row: Row) -> str:
    return f"{row.what}, beside {row.other}" if row.other else row.what


def _without(remarks: str, noisy: tuple[Row, ...]) -> str:
    """Without the lines of tables that show one side of those rows once more, as their first cell tells."""

    def again(line: str) -> bool:
        cell = line.split("|")[1].strip() if line.startswith("|") else ""
        return bool(cell) and any(row.what.endswith(cell) or _is_theirs(row, cell) for row in noisy)

    return "\n".join(line for line in remarks.split("\n") if not again(line))


def _is_theirs(row: Row, cell: str) -> bool:
    """Whether the cell, a case and who ran it, names the other side of the row, and that side is noisy."""
    case, _, who = cell.rpartition(", ")
    noisy = row.theirs is not None and (row.theirs.noise or 0.0) > MOST
    return noisy and bool(case) and case in row.what and row.other.startswith(who)
