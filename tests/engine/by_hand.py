"""A home's database read and changed by hand: what is old, of another program, or asked by no part of the engine."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from marlaas.engine.store.queries.reader import Reader


def rows(database: Path, sql: str, *values: Any) -> list[dict[str, Any]]:
    """What a query finds."""
    with Reader(database) as reader:
        return [dict(row) for row in reader.all(sql, *values)]


def change(database: Path, sql: str, *values: Any) -> None:
    """Carry out one statement beside whoever has the database open."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute(sql, values)
