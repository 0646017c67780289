"""Migrations for tasks of several policies."""

from __future__ import annotations

from sqlite_utils import Database

from .registry import migrations, table


@migrations()
def m020_casts(db: Database) -> None:
    """Versions of other tasks that a task refers to, and which groups are of one play."""
    table(
        db,
        "borrowed",
        {
            "task": int,
            "words": str,  # as the task file has them: "17@best"
            "version": int,  # its id
            "plays": int,  # 1: it is played with while the task runs; 0: training begins from it
        },
        pk=("task", "words"),
        not_null={"version", "plays"},
        foreign_keys=[("task", "tasks", "id"), ("version", "versions", "id")],
    )
    db.execute("CREATE INDEX idx_borrowed_version ON borrowed (version)")
    db.execute(
        "INSERT INTO borrowed (task, words, version, plays)"
        " SELECT id, json_extract(config, '$.policy.start'), start, 0 FROM tasks WHERE start IS NOT NULL"
    )
    db.table("environments").add_column("agents", str, not_null_default="[]")  # JSON: names; empty if it declares none
    db.table("groups").add_column("play", int)  # the first group of the same play; NULL: it is that group
    db.table("trajectories").add_column("speaker", str, not_null_default="")  # a policy not trained on it; else empty
