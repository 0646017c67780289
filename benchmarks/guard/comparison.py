"""Counts as a text of one line each, and what changed between two of them, in sentences. Pure."""

from __future__ import annotations

from collections.abc import Mapping

BOUNDS: Mapping[str, float] = {}
"""By the end of a name, the share by which a count may differ without being told; without one it must be equal."""

Counts = Mapping[str, float]

HEAD = """\
# What marlaas does on its hot paths: calls, statements, frames, bytes and operations, each on a line of its own.
# Compared by `make bench-guard`; written by `make bench-guard WRITE=1`.
"""


def written(counts: Counts) -> str:
    """The text of a file: sorted, one line a count. What never happens is left out."""
    lines = (f"{name} = {_number(count)}\n" for name, count in sorted(counts.items()) if count)
    return HEAD + "".join(lines)


def read(text: str) -> dict[str, float]:
    """The counts of such a text. Raises ``ValueError`` with the line that is none."""
    found = {}
    for place, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, equals, count = line.rpartition(" = ")
        try:
            found[name] = float(count.replace(",", ""))
        except ValueError:
            equals = ""
        if not equals:
            raise ValueError(f"Line {place} is no count: {line!r}.")
    return found


def changes(before: Counts, now: Counts) -> list[str]:
    """A sentence for each count that differs by more than its bound, in the order of the names."""
    return [
        _sentence(name, before.get(name, 0.0), now.get(name, 0.0))
        for name in sorted(before.keys() | now.keys())
        if _number(before.get(name, 0.0)) != _number(now.get(name, 0.0))
        and abs(now.get(name, 0.0) - before.get(name, 0.0)) > _bound(name) * before.get(name, 0.0)
    ]


def _bound(name: str) -> float:
    return next((share for end, share in BOUNDS.items() if name.endswith(end)), 0.0)


def _sentence(name: str, before: float, now: float) -> str:
    if not before:
        return f"New: {name}: {_number(now)}."
    if not now:
        return f"Gone: {name} was {_number(before)}."
    share = 100 * (now - before) / before
    return (
        f"{'More' if now > before else 'Fewer'}: {name}: {_number(now)} instead of {_number(before)} ({share:+.1f} %)."
    )


def _number(count: float) -> str:
    """At most two places: what differs less is the same."""
    return f"{count:,.2f}".rstrip("0").rstrip(".") if count % 1 else f"{count:,.0f}"
