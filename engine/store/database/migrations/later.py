"""Migrations after the first tables, in order."""

from __future__ import annotations

from sqlite_utils import Database

from .registry import migrations, table


@migrations()
def m005_bases(db: Database) -> None:
    """The fingerprint of the base that a task and its adapters belong to, and of the base that an engine served."""
    # Empty for a task that is older than this column: the next engine writes down the base that it serves.
    db.table("tasks").add_column("base", str, not_null_default="")
    db.table("engines").add_column("fingerprint", str, not_null_default="")


@migrations()
def m006_shares(db: Database) -> None:
    """Quotas and usage of tenants; families of tasks and their retries."""
    db.table("tenants").add_column("tasks", int, not_null_default=0)  # at the same time; 0: no quota
    db.table("tenants").add_column("tokens_per_day", int, not_null_default=0)  # 0: no quota
    db.table("tasks").add_column("family", str, not_null_default="")  # the name of the sweep that the task is of
    db.table("tasks").add_column("retried", int, not_null_default=0)  # since a person last put it into the queue
    db.table("tasks").add_column("due", float)  # time of the next try; NULL: none is due
    db.table("tasks").add_column("cause", str, not_null_default="")  # which try that is, and what it is for
    table(
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
    table(
        db,
        "usage",
        {"day": str, "task": int, "stage": str, "tokens": int, "seconds": float},  # day: UTC, 2026-11-21
        pk=("day", "task", "stage"),
        not_null={"tokens", "seconds"},
        foreign_keys=[("task", "tasks", "id")],
    )
    db.table("usage").create_index(["task"])
    table(
        db,
        "stages",
        {
            "id": int,
            "incarnation": int,
            "stage": str,  # rollout, environment, training, engine
            "device": str,  # the cores or the GPU
            "begun": float,
            "wall": float,  # seconds that the row covers
            "busy": float,  # seconds of them with useful work
            "waiting": float,  # requests that waited, on average
            "active": float,
            "ended": int,  # turns, episodes or calls that ended meanwhile
        },
        pk="id",
        not_null={"incarnation", "stage", "begun", "wall", "busy"},
        defaults={"device": "", "waiting": 0.0, "active": 0.0, "ended": 0},
    )
    db.table("stages").create_index(["stage", "begun"])
    # Few of a long run's versions are kept or labelled; queries for those should not read all versions.
    db.execute("CREATE INDEX idx_versions_kept ON versions (policy, number) WHERE state = 'committed'")
    db.execute("CREATE INDEX idx_versions_labelled ON versions (policy) WHERE label != ''")


@migrations()
def m007_room(db: Database) -> None:
    """What was removed to free disk space: optimizer moments of kept versions, tokens of old trajectories."""
    db.table("versions").add_column("resumable", int, not_null_default=1)  # 0: its file holds no moments
    db.table("versions").add_column("restarted", int, not_null_default=0)  # 1: the optimizer began anew here
    db.table("trajectories").add_column("length", int)  # in tokens, of one whose arrays are gone; else NULL
    db.table("groups").add_column("shrunk", int, not_null_default=0)  # 1: the arrays of its trajectories are gone
    db.execute("CREATE INDEX idx_groups_whole ON groups (policy, step) WHERE shrunk = 0")


@migrations()
def m008_conformance(db: Database) -> None:
    """Findings of the conformance checks, by environment version."""
    table(
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
    """Importance weights of trained groups, and indexes for lists of 100,000 trajectories."""
    # float16: the logarithm of the importance weight, trainer over sampler, of each token that a policy sampled, one
    # trajectory after the other; NaN in those not trained on. NULL where the group went through no pass.
    db.table("groups").add_column("weights", bytes)
    db.table("groups").create_index(["policy", "split", "step", "number"])
    conversations = '("group", member, agent)'  # what tells conversations apart
    db.execute(f"CREATE INDEX idx_trajectories_conversations ON trajectories {conversations}")
    db.execute("DROP INDEX idx_trajectories_group")
    db.execute(f"CREATE INDEX idx_trajectories_failed ON trajectories {conversations} WHERE status != 'ok'")


@migrations()
def m011_series(db: Database) -> None:
    """Keep the episodes of each evaluation, one set for each environment version that a version was measured on."""
    db.execute("DROP INDEX idx_groups_policy_split_number_step")
    db.table("groups").create_index(["policy", "split", "number", "step", "environment_version"], unique=True)


@migrations()
def m012_played_on(db: Database) -> None:
    """The environment version that a step's newest group was played on: where it changes, rewards may jump."""
    db.table("steps").add_column("environment_version", str, not_null_default="")
    db.execute(
        "UPDATE steps SET environment_version = g.environment_version FROM"
        " (SELECT policy, step, max(number), environment_version FROM groups"
        " WHERE split = 'train' AND step IS NOT NULL GROUP BY policy, step) g"
        " WHERE g.policy = steps.policy AND g.step = steps.number"
    )


@migrations()
def m013_machine(db: Database) -> None:
    """For the view of the machine: tokens by stage, the sampler, tenants' places in line; and a task's log."""
    db.table("stages").add_column("tokens", int, not_null_default=0)
    db.table("engines").add_column("sampler", str, not_null_default="")
    table(
        db,
        "standings",
        {"stage": str, "tenant": str, "waiting": int, "behind": float},  # of this moment alone
        pk=("stage", "tenant"),
        not_null={"waiting", "behind"},
    )
    db.table("events").create_index(["task"])


@migrations()
def m014_outcomes(db: Database) -> None:
    """How episodes ended, also those of groups that never closed, and what went wrong last, by environment version."""
    table(
        db,
        "outcomes",
        {
            "begun": int,  # start of the minute or hour that the row sums up
            "environment": str,  # "plugin/environment"
            "version": str,
            "status": str,  # ok, skip, timeout, error, cancelled
            "bucket": int,  # of the episodes' seconds: four to each doubling; 1 s begins bucket 0, below it is negative
            "episodes": int,
        },
        pk=("begun", "environment", "version", "status", "bucket"),
        not_null={"episodes"},
    )
    table(
        db,
        "failures",
        {"environment": str, "version": str, "message": str, "file": str, "line": int, "created": float},
        pk=("environment", "version"),
        not_null={"message", "file", "line", "created"},
    )


@migrations()
def m015_paid(db: Database) -> None:
    """Rewards for turns, beside the first trajectory of the agent that got them."""
    db.table("trajectories").add_column("paid", str)  # JSON [[turns, amount, name], …]; NULL: none


@migrations()
def m016_rest(db: Database) -> None:
    """Until when a person has the engine yield the machine, and why an engine has no workers."""
    table(db, "yields", {"id": int, "since": float, "until": float}, pk="id", not_null={"since"})  # a row at most
    db.table("engines").add_column("rest", str, not_null_default="")  # yielded, hours or idle; empty: it has workers
    db.table("engines").add_column("rest_until", float)


@migrations()
def m017_samplers(db: Database) -> None:
    """For several samplers: the kind that a policy must stay with, and the device of each worker."""
    db.table("policies").add_column("sampler", str, not_null_default="")  # empty: any kind
    db.table("workers").add_column("device", str, not_null_default="")  # "core 0", "gpus 0-1"; empty: not known


@migrations()
def m018_devices(db: Database) -> None:
    """The cards of the machine as the engine last saw them."""
    table(
        db,
        "devices",
        {
            "uuid": str,
            "place": int,  # in the driver's order
            "label": str,  # gpu 0
            "name": str,
            "memory": int,
            "free": int,
            "utilisation": float,
            "reason": str,  # why it is not used; empty: it may be used
            "holders": str,  # JSON [{"pid", "account", "memory", "ours", "screen"}, …]
            "updated": float,
        },
        pk="uuid",
        not_null={"place", "label", "name", "memory", "free", "reason", "holders", "updated"},
    )


@migrations()
def m019_placement(db: Database) -> None:
    """The placement plan of an engine and its reasons, in words."""
    db.table("engines").add_column("placement", str, not_null_default="")  # lines; empty: not placed yet
