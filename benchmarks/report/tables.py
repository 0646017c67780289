"""Figures as text, and rows as a table of Markdown. Pure."""

from __future__ import annotations

import math

from .figures import Row, Section, Series

COLUMNS = ("what", "unit", "marlaas", "other side", "ratio", "goal")


def table(section: Section) -> str:
    """The section's rows; columns that would be empty throughout are left out."""
    rows = [_cells(row) for row in section.rows]
    used = [place for place in range(len(COLUMNS)) if any(row[place] for row in rows)]
    lines = [line(*(COLUMNS[place] for place in used)), ruler(len(used))]
    return "\n".join([*lines, *(line(*(row[place] for place in used)) for row in rows)])


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    decimals = 2 - math.floor(math.log10(abs(value))) if value else 0
    return f"{value:,.{max(0, decimals)}f}"


def percent(share: float) -> str:
    """A share of noise; what is below one percent says so."""
    return f"{share:.0%}" if share >= 0.01 else "< 1%"


def spread(series: Series, sign: str = "") -> str:
    """Median, lowest and highest."""
    middle = f"{number(series.middle)}{sign}"
    return middle if series.low == series.high else f"{middle} [{number(series.low)}–{number(series.high)}]"


def line(*cells: str) -> str:
    """One line of a table."""
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def ruler(columns: int) -> str:
    """What stands below a table's titles."""
    return line(*["---"] * columns)


def _cells(row: Row) -> tuple[str, ...]:
    other = f"{spread(row.theirs)} {row.other}".strip() if row.theirs else ""
    ratio = spread(row.ratio, " ×") if row.ratio else ""
    return (row.what, row.unit, spread(row.ours), other, ratio, row.goal)
