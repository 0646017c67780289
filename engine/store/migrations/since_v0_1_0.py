"""Migrations after version 0.1.0, in order: homes of users have the tables before them."""

from __future__ import annotations

from sqlite_utils import Database

from .registry import migrations, table


@migrations()
def m021_places(db: Database) -> None:
    """Make paths of state files relative to the home: ``adapters/task-1/policy-v3-i1.safetensors``.

    What is between ``adapters/`` and the suffix is the version's name, whatever folder the home was in.
    """
    db.execute(
        "UPDATE versions SET path = 'adapters/' || name || '.safetensors'"
        " WHERE substr(path, -length('/adapters/' || name || '.safetensors')) = '/adapters/' || name || '.safetensors'"
    )


@migrations()
def m022_engine_version(db: Database) -> None:
    """The version of marlaas that an engine runs: programs of another version ask for a restart."""
    db.table("engines").add_column("version", str, not_null_default="")


@migrations()
def m023_reason_code(db: Database) -> None:
    """Why a task waits, paused or ended, as a code beside the sentence: programs need not read sentences."""
    db.table("tasks").add_column("reason_code", str, not_null_default="")
    db.execute(
        "UPDATE tasks SET reason_code = CASE WHEN state = 'failed' THEN 'failed'"
        " WHEN state = 'paused' AND reason = 'paused by a person' THEN 'person'"
        " WHEN state = 'paused' THEN 'itself' ELSE '' END"
    )


@migrations()
def m027_lost_members(db: Database) -> None:
    """Members of groups that failed to the end, plays that were made again; and what people should know of a task."""
    db.table("groups").add_column("lost", int, not_null_default=0)
    db.table("groups").add_column("replayed", int, not_null_default=0)
    table(
        db,
        "warnings",
        {"task": int, "about": str, "message": str, "created": float},  # about: what it is of, such as a line of code
        pk=("task", "about"),
        not_null={"message", "created"},
    )


@migrations()
def m028_components(db: Database) -> None:
    """Which environment of a mixture a group was played on."""
    db.table("groups").add_column("component", str, not_null_default="")  # empty: the task has no mixture
