"""Which rows the groups of a policy drew, and what their rewards were: what a curriculum goes by. Engine side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sqlite_utils import Database

from .database import insert_all


@dataclass(frozen=True)
class Draw:
    """An attempt at a group whose rewards are known, be it trained on or thrown away."""

    number: int
    """Of the group."""
    attempt: int
    """0 for the first row that the group drew."""
    position: int
    """Of the row in the order of the train split: the instance."""
    row: int
    rows: int
    """Rows of the train split at that time; with another number, ``row`` is another row."""
    least: float
    """The lowest reward of the group."""
    most: float
    """The highest."""
    spread: float
    """Their population standard deviation."""


def add_draws(database: Database, policy: int, number: int, draws: Sequence[Draw]) -> None:
    """Write the draws of a group, in the caller's transaction; they replace those of an earlier try at it."""
    database.execute("DELETE FROM draws WHERE policy = ? AND number = ?", [policy, number])
    insert_all(database, "draws", [{"policy": policy, **asdict(draw)} for draw in draws])


def draws_of(database: Database, policy: int) -> list[Draw]:
    """The draws of the groups that are stored, by number and attempt."""
    found = database.query(
        "SELECT number, attempt, position, row, rows, least, most, spread FROM draws d WHERE policy = ? AND EXISTS"
        " (SELECT 1 FROM groups g WHERE g.policy = d.policy AND g.split = 'train' AND g.number = d.number)"
        " ORDER BY number, attempt",
        [policy],
    )
    return [Draw(**row) for row in found]
