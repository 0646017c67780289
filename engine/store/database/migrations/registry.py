"""The list of migrations that the modules beside this one add to, in the order in which they are imported."""

from __future__ import annotations

from typing import Any

from sqlite_utils import Database
from sqlite_utils.migrations import Migrations

migrations = Migrations("marlaas")


def table(db: Database, name: str, columns: dict[str, Any], **options: Any) -> None:
    """Create a table."""
    db.table(name).create(columns, **options)
