"""What came after version 0.1.0, in order: homes of users have the tables before it."""

from __future__ import annotations

from sqlite_utils import Database

from .registry import migrations


@migrations()
def m021_places(db: Database) -> None:
    """State files are named as ``adapters/task-1/policy-v3-i1.safetensors``, wherever the home lay when they were
    written: a version's name is the rest of its path."""
    db.execute(
        "UPDATE versions SET path = 'adapters/' || name || '.safetensors'"
        " WHERE substr(path, -length('/adapters/' || name || '.safetensors')) = '/adapters/' || name || '.safetensors'"
    )


@migrations()
def m022_engine_version(db: Database) -> None:
    """The version of marlaas that an engine is of: programs of another version ask for its restart."""
    db.table("engines").add_column("version", str, not_null_default="")
