"""Copies the database before migrations change its tables.

A copy lies in the folder ``backups`` beside the database. marlaas never reads it; a person can put it back, together
with the marlaas that it is of.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path

from marlaas.plugins.durable import to_disk

from ...errors import StoreError

FOLDER = "backups"
KEPT = 3
"""How many copies are kept, the newest."""


def keep_copy(connection: sqlite3.Connection, database: Path, schema: str) -> Path:
    """Copy the database, which others may use meanwhile, and remove the oldest copies. Raises ``StoreError``.

    ``schema`` is the name of the database's last migration; the copy is named by it and by the time.
    """
    folder = database.absolute().parent / FOLDER
    copy = folder / f"{schema}-{time.strftime('%Y%m%d-%H%M%S')}.db"
    unfinished = folder / "unfinished.part"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        os.close(os.open(unfinished, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600))
        with closing(sqlite3.connect(unfinished)) as target:
            connection.backup(target)
        to_disk(unfinished)
        unfinished.replace(copy)
        to_disk(folder)
        by_age = sorted(folder.glob("m[0-9]*.db"), key=lambda file: (file.stat().st_mtime, file.name))
        for old in by_age[:-KEPT]:
            old.unlink()
    except (OSError, sqlite3.Error) as error:
        with suppress(OSError):
            unfinished.unlink()
        why = getattr(error, "strerror", None) or str(error)
        raise StoreError(
            f"the database is of an older marlaas, and no copy of it could be made in {folder}: {why}.",
            "Nothing was changed; the copy needs as much room as the database.",
            where=str(database),
        ) from error
    return copy
