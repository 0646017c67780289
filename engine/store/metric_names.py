"""Names of metrics that say more than their value: the counts of groups by staleness. Standard library only."""

from __future__ import annotations

_STALE = "staleness_"


def stale(age: int) -> str:
    """The metric that counts groups whose tokens were ``age`` versions old: staleness_2."""
    return f"{_STALE}{age}"


def stale_age(name: str) -> int | None:
    """The age that a metric of that name counts groups of; None for any other metric."""
    rest = name.removeprefix(_STALE)
    return int(rest) if rest != name and rest.isascii() and rest.isdigit() and len(rest) < 4 else None
