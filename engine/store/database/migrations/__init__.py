"""The schema, as migrations that run in order and once each.

A column is never changed in place: a further migration follows. JSON columns hold small maps; arrays are BLOBs of their
little-endian bytes (int32 tokens, float32 log-probabilities, uint8 masks).
"""

from __future__ import annotations

from contextlib import closing

from sqlite_utils import Database

from . import first, later, several_policies, since_v0_1_0
from .registry import migrations

__all__ = ["KNOWN_MIGRATIONS", "first", "later", "migrations", "several_policies", "since_v0_1_0"]

with closing(Database(memory=True)) as _empty:
    KNOWN_MIGRATIONS = frozenset(migration.name for migration in migrations.pending(_empty))
"""Names of all migrations of this program; a database with any other name is of a newer program."""
