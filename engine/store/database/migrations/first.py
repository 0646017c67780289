"""The first tables: the queue, policies, experience, telemetry. ``later.py`` adds to them."""

from __future__ import annotations

from sqlite_utils import Database

from .registry import migrations, table


@migrations()
def m001_queue(db: Database) -> None:
    """Tenants, their tasks, and the commands by which the app asks the engine to change a task."""
    table(db, "tenants", {"name": str, "weight": float, "created": float}, pk="name", not_null={"weight", "created"})
    table(
        db,
        "tasks",
        {
            "id": int,
            "tenant": str,
            "name": str,
            "environment": str,
            "state": str,
            "reason": str,
            "config": str,  # JSON: the whole task file with defaults filled
            "source": str,  # the task file as its author wrote it
            "priority": int,
            "steps": int,
            "created": float,
            "started": float,
            "finished": float,
            "seconds": float,  # running time over all incarnations
        },
        pk="id",
        not_null={"tenant", "name", "environment", "state", "config", "created", "steps"},
        defaults={"state": "submitted", "reason": "", "source": "", "priority": 0, "seconds": 0.0},
    )
    db.table("tasks").create_index(["state"])
    table(
        db,
        "commands",
        {"id": int, "kind": str, "task": int, "arguments": str, "created": float, "done": float, "outcome": str},
        pk="id",
        not_null={"kind", "created"},
        defaults={"arguments": "{}", "outcome": ""},
        foreign_keys=[("task", "tasks", "id")],
    )


@migrations()
def m002_policies(db: Database) -> None:
    """A task's policies, their immutable versions and the optimizer steps between them."""
    table(
        db,
        "policies",
        {"id": int, "task": int, "name": str, "config": str, "step": int},
        pk="id",
        not_null={"task", "name", "config", "step"},
        foreign_keys=[("task", "tasks", "id")],
    )
    db.table("policies").create_index(["task", "name"], unique=True)
    table(
        db,
        "versions",
        {
            "id": int,
            "policy": int,
            "number": int,  # optimizer steps made
            "name": str,  # unique for ever: names the incarnation that made it
            "incarnation": int,
            "state": str,  # committed, void (its file did not verify) or pruned (its file was removed)
            "checksum": str,
            "path": str,
            "size": int,
            "label": str,  # "", best, last, or both
            "created": float,
        },
        pk="id",
        not_null={"policy", "number", "name", "incarnation", "state", "checksum", "path", "created"},
        defaults={"label": "", "size": 0},
        foreign_keys=[("policy", "policies", "id")],
    )
    db.table("versions").create_index(["name"], unique=True)
    db.table("versions").create_index(["policy", "number"])
    table(
        db,
        "steps",
        {
            "id": int,
            "policy": int,
            "number": int,
            "version": int,
            "incarnation": int,
            "seconds": float,
            "created": float,
        },
        pk="id",
        not_null={"policy", "number", "version", "created"},
        foreign_keys=[("policy", "policies", "id"), ("version", "versions", "id")],
    )
    db.table("steps").create_index(["policy", "number"], unique=True)
    table(
        db,
        "metrics",
        {"policy": int, "step": int, "name": str, "value": float},
        pk=("policy", "step", "name"),
        foreign_keys=[("policy", "policies", "id")],
    )
    db.table("metrics").create_index(["policy", "name", "step", "value"])  # covers the queue's query without the table
    table(
        db,
        "evals",
        {
            "id": int,
            "policy": int,
            "step": int,
            "version": int,
            "environment_version": str,
            "score": float,
            "stderr": float,
            "n": int,
            "floor": float,  # best constant answer on the same prompts; NULL where it is unknown
            "metrics": str,
            "created": float,
        },
        pk="id",
        not_null={"policy", "step", "environment_version", "score", "n", "created"},
        defaults={"metrics": "{}"},
        foreign_keys=[("policy", "policies", "id"), ("version", "versions", "id")],
    )
    db.table("evals").create_index(["policy", "environment_version", "step"], unique=True)


@migrations()
def m003_experience(db: Database) -> None:
    """Complete groups and the trajectories in them."""
    table(
        db,
        "groups",
        {
            "id": int,
            "policy": int,
            "split": str,
            "number": int,  # in the policy's sequence of training groups; in an evaluation the prompt's
            "instance": int,
            "version": int,  # the policy version (number) that its members were sampled from
            "environment_version": str,
            "state": str,  # complete or consumed
            "step": int,  # the step that consumed it; for an evaluation the step evaluated
            "created": float,
        },
        pk="id",
        not_null={"policy", "split", "number", "instance", "version", "environment_version", "state", "created"},
        foreign_keys=[("policy", "policies", "id")],
    )
    db.table("groups").create_index(["policy", "split", "number", "step"], unique=True)
    table(
        db,
        "trajectories",
        {
            "id": int,
            "group": int,
            "member": int,
            "agent": str,
            "status": str,
            "reward": float,  # NULL where the episode has none
            "advantage": float,
            "tokens": bytes,
            "mask": bytes,
            "logprobs": bytes,
            "spans": str,  # JSON [[start, stop, version], …]
            "turns": str,  # JSON [{"role", "text"}, …], for people to read
            "parts": str,
            "metrics": str,
            "failure": str,
            "seconds": float,
        },
        pk="id",
        not_null={"group", "member", "agent", "status"},
        foreign_keys=[("group", "groups", "id")],
    )
    db.table("trajectories").create_index(["group"])


@migrations()
def m004_telemetry(db: Database) -> None:
    """Events, engines, workers and environments, for the screen and the log."""
    table(
        db,
        "events",
        {"id": int, "task": int, "level": str, "kind": str, "message": str, "created": float},
        pk="id",
        not_null={"level", "kind", "message", "created"},
    )
    table(
        db,
        "engines",
        {"incarnation": int, "pid": int, "state": str, "started": float, "heartbeat": float, "base": str, "note": str},
        pk="incarnation",
        not_null={"pid", "state", "started", "heartbeat"},
        defaults={"base": "", "note": ""},
    )
    table(
        db,
        "workers",
        {"name": str, "pid": int, "state": str, "rss": int, "busy": float, "started": float, "updated": float},
        pk="name",
    )
    table(
        db,
        "environments",
        {
            "name": str,
            "version": str,
            "state": str,
            "parameters": str,  # JSON
            "description": str,
            "message": str,
            "file": str,
            "line": int,
            "path": str,
            "updated": float,
        },
        pk="name",
    )
