"""An empty database is made once per process, by the real migrations, and copied from then on.

Hundreds of tests begin with one, and its tables take far longer to make than what most of them do with it.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import cache
from typing import Any

from sqlite_utils import Database

from marlaas.engine.store.database import migrations

APPLY = migrations.apply


def keep_empty_database() -> None:
    """From now on the migrations copy where there is nothing yet."""
    migrations.apply = _applied  # type: ignore[method-assign, assignment]


def _applied(database: Database, **options: Any) -> None:
    if options or database.execute("SELECT 1 FROM sqlite_master").fetchone():
        APPLY(database, **options)
    else:
        with closing(sqlite3.connect(":memory:")) as connection:
            connection.deserialize(_empty())
            connection.backup(database.conn)


@cache
def _empty() -> bytes:
    """All tables and no row."""
    with closing(sqlite3.connect(":memory:")) as connection:
        APPLY(Database(connection))
        return connection.serialize()
