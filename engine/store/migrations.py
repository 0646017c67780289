"""The schema, as migrations that run in order and once each.

A column is never changed in place: a new migration follows. JSON columns hold small maps; arrays are BLOBs of their
little-endian bytes (int32 tokens, float32 log-probabilities, uint8 masks).
"""

from __future__ import annotations

from typing import Any

from sqlite_utils import Database
from sqlite_utils.migrations import Migrations

migrations = Migrations("marlaas")


def _table(db: Database, name: str, columns: dict[str, Any], **options: Any) -> None:
    db.table(name).create(columns, **options)


@migrations()
def m001_queue(db: Database) -> None:
    """Tenants and their tasks; commands are how the app asks the engine to change one."""
    _table(db, "tenants", {"name": str, "weight": float, "created": float}, pk="name", not_null={"weight", "created"})
    _table(
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
    _table(
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
    _table(
        db,
        "policies",
        {"id": int, "task": int, "name": str, "config": str, "step": int},
        pk="id",
        not_null={"task", "name", "config", "step"},
        foreign_keys=[("task", "tasks", "id")],
    )
    db.table("policies").create_index(["task", "name"], unique=True)
    _table(
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
    _table(
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
    _table(
        db,
        "metrics",
        {"policy": int, "step": int, "name": str, "value": float},
        pk=("policy", "step", "name"),
        foreign_keys=[("policy", "policies", "id")],
    )
    db.table("metrics").create_index(["policy", "name", "step", "value"])  # answers the queue's question by itself
    _table(
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
    _table(
        db,
        "groups",
        {
            "id": int,
            "policy": int,
            "split": str,
            "number": int,  # of the policy's sequence of training groups; of the prompt in an evaluation
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
    _table(
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
            "turns": str,  # JSON [{"role", "text"}, …]: for people
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
    """What happened and what is alive: for the screen and for the log."""
    _table(
        db,
        "events",
        {"id": int, "task": int, "level": str, "kind": str, "message": str, "created": float},
        pk="id",
        not_null={"level", "kind", "message", "created"},
    )
    _table(
        db,
        "engines",
        {"incarnation": int, "pid": int, "state": str, "started": float, "heartbeat": float, "base": str, "note": str},
        pk="incarnation",
        not_null={"pid", "state", "started", "heartbeat"},
        defaults={"base": "", "note": ""},
    )
    _table(
        db,
        "workers",
        {"name": str, "pid": int, "state": str, "rss": int, "busy": float, "started": float, "updated": float},
        pk="name",
    )
    _table(
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


@migrations()
def m005_bases(db: Database) -> None:
    """To which base a task and its adapters belong, and which one an engine served: fingerprints."""
    # Empty for a task that was submitted before: the next engine writes down the base that it serves.
    db.table("tasks").add_column("base", str, not_null_default="")
    db.table("engines").add_column("fingerprint", str, not_null_default="")


@migrations()
def m006_shares(db: Database) -> None:
    """What tenants may take and have taken; families of tasks and their retries."""
    db.table("tenants").add_column("tasks", int, not_null_default=0)  # at the same time; 0: no quota
    db.table("tenants").add_column("tokens_per_day", int, not_null_default=0)  # 0: no quota
    db.table("tasks").add_column("family", str, not_null_default="")  # of a sweep: what its members share
    db.table("tasks").add_column("retried", int, not_null_default=0)  # since a person last put it into the queue
    db.table("tasks").add_column("due", float)  # of the next try; NULL: it waits for none
    db.table("tasks").add_column("cause", str, not_null_default="")  # which try that is, and what it is for
    _table(
        db,
        "dependencies",
        {"task": int, "needs": int},  # both are tasks: the first waits until the second is done
        pk=("task", "needs"),
        foreign_keys=[("task", "tasks", "id")],
    )
    db.execute(
        "INSERT OR IGNORE INTO dependencies (task, needs)"
        " SELECT t.id, n.value FROM tasks t, json_each(t.config, '$.queue.depends_on') n"
    )
    db.table("groups").add_column("replaced", int, not_null_default=0)  # groups of equal rewards before it
    db.table("trajectories").add_column("cut", int, not_null_default=0)  # 1: the length limit ended the episode
    _table(
        db,
        "usage",
        {"day": str, "task": int, "stage": str, "tokens": int, "seconds": float},  # day: UTC, 2026-11-21
        pk=("day", "task", "stage"),
        not_null={"tokens", "seconds"},
        foreign_keys=[("task", "tasks", "id")],
    )
    db.table("usage").create_index(["task"])
    _table(
        db,
        "stages",
        {
            "id": int,
            "incarnation": int,
            "stage": str,  # rollout, environment, training, engine
            "device": str,  # the cores, or the GPU
            "begun": float,
            "wall": float,  # seconds that the row covers
            "busy": float,  # of them with useful work
            "waiting": float,  # requests that waited, on average
            "active": float,
            "ended": int,  # turns, episodes or calls that ended meanwhile
        },
        pk="id",
        not_null={"incarnation", "stage", "begun", "wall", "busy"},
        defaults={"device": "", "waiting": 0.0, "active": 0.0, "ended": 0},
    )
    db.table("stages").create_index(["stage", "begun"])
    # Few of a long run's versions are kept or named, and what looks for those must not read all of them.
    db.execute("CREATE INDEX idx_versions_kept ON versions (policy, number) WHERE state = 'committed'")
    db.execute("CREATE INDEX idx_versions_labelled ON versions (policy) WHERE label != ''")


@migrations()
def m007_room(db: Database) -> None:
    """What was given up for room on the disk: optimizer moments of kept versions, tokens of old trajectories."""
    db.table("versions").add_column("resumable", int, not_null_default=1)  # 0: its file holds no moments
    db.table("versions").add_column("restarted", int, not_null_default=0)  # 1: the optimizer began anew here
    db.table("trajectories").add_column("length", int)  # in tokens, of one whose arrays are gone; else NULL
    db.table("groups").add_column("shrunk", int, not_null_default=0)  # 1: the arrays of its trajectories are gone
    db.execute("CREATE INDEX idx_groups_whole ON groups (policy, step) WHERE shrunk = 0")


@migrations()
def m008_conformance(db: Database) -> None:
    """What the checks of an environment found, by version."""
    _table(
        db,
        "conformance",
        {
            "environment": str,  # "plugin/environment"
            "version": str,
            "base": str,  # fingerprint of the base whose tokens were counted
            "findings": str,  # JSON [{"check", "level", "message"}, …]
            "created": float,
        },
        pk=("environment", "version"),
        not_null={"base", "findings", "created"},
    )


@migrations()
def m009_starts(db: Database) -> None:
    """Which version of another task a task's version 0 is; NULL: it begins untrained."""
    db.table("tasks").add_column("start", int)  # a version's id
    db.execute("CREATE INDEX idx_tasks_start ON tasks (start) WHERE start IS NOT NULL")


@migrations()
def m010_rollouts(db: Database) -> None:
    """How far the policy had moved when a group was trained on; where lists of 100,000 trajectories are found."""
    # float16: the logarithm of the importance weight, trainer over sampler, of each token that a policy sampled, one
    # trajectory after the other; NaN in those not trained on. NULL where the group went through no pass.
    db.table("groups").add_column("weights", bytes)
    db.table("groups").create_index(["policy", "split", "step", "number"])
    conversations = '("group", member, agent)'  # each holds what the one before it did, and tells conversations apart
    db.execute(f"CREATE INDEX idx_trajectories_conversations ON trajectories {conversations}")
    db.execute("DROP INDEX idx_trajectories_group")
    db.execute(f"CREATE INDEX idx_trajectories_failed ON trajectories {conversations} WHERE status != 'ok'")


@migrations()
def m011_series(db: Database) -> None:
    """The episodes of a version's evaluations stay, one set for each environment version that it was measured on."""
    db.execute("DROP INDEX idx_groups_policy_split_number_step")
    db.table("groups").create_index(["policy", "split", "number", "step", "environment_version"], unique=True)


KNOWN_MIGRATIONS = frozenset(migration.name for migration in migrations.pending(Database(memory=True)))
"""Names that a database of this program may have applied; any other name comes from a newer program."""
