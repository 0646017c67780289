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
def m024_honest_scores(db: Database) -> None:
    """What a held-out score rests on: failures, distinct prompts, samples of each, and the key of its series.

    The table is made anew because a row may be without a score. In earlier rows each episode counted as a prompt of its
    own, and a series was an environment version.
    """
    db.execute("ALTER TABLE evals RENAME TO earlier_evals")
    table(
        db,
        "evals",
        {
            "id": int,
            "policy": int,
            "step": int,
            "version": int,
            "environment_version": str,
            "series": str,  # the key of what scores compare on
            "suite": str,  # empty: the task's own held-out prompts
            "split": str,  # eval or test
            "score": float,  # avg@k; NULL: too many episodes failed
            "stderr": float,
            "n": int,  # episodes with a reward
            "failures": int,  # episodes without one after all tries
            "prompts": int,  # distinct ones
            "samples": int,  # episodes of each prompt, k
            "best_of": float,  # best@k; NULL where k is 1
            "pass_at": float,  # pass@k; NULL where k is 1
            "floor": float,  # best constant answer on the same prompts; NULL where it is unknown
            "metrics": str,
            "created": float,
        },
        pk="id",
        not_null={"policy", "step", "environment_version", "series", "suite", "split", "n", "created"},
        defaults={"suite": "", "split": "eval", "failures": 0, "prompts": 0, "samples": 1, "metrics": "{}"},
        foreign_keys=[("policy", "policies", "id"), ("version", "versions", "id")],
    )
    same = "id, policy, step, version, environment_version, score, stderr, n, floor, metrics, created"
    db.execute(f"INSERT INTO evals ({same}, series, prompts) SELECT {same}, environment_version, n FROM earlier_evals")
    db.execute("DROP TABLE earlier_evals")
    db.table("evals").create_index(["policy", "series", "suite", "split", "step"], unique=True)
    db.table("evals").create_index(["policy", "suite", "split"])  # the newest of a policy is the last of its entries


@migrations()
def m025_suites(db: Database) -> None:
    """Tasks that measure; which suite a group was played for, and on which split the score of a policy is measured."""
    db.table("tasks").add_column("kind", str, not_null_default="train")  # train or eval
    db.table("groups").add_column("suite", str, not_null_default="")  # empty: the task's own environment
    # of an evaluation: JSON [{agent: reward}, …] by member, of the measured policy's agents, silent ones included
    db.table("groups").add_column("rewards", str)
    db.execute("DROP INDEX idx_groups_policy_split_number_step_environment_version")
    same = ["policy", "split", "number", "step", "environment_version", "suite"]
    db.table("groups").create_index(same, unique=True)
    db.table("policies").add_column("split", str, not_null_default="eval")  # test: of an evaluation on that split


@migrations()
def m026_draws(db: Database) -> None:
    """Which rows groups drew and what came of it, for tasks that sample by difficulty; whose rows environments have."""
    db.table("environments").add_column("rows", str, not_null_default="own")  # own, task; empty: it has none
    table(
        db,
        "draws",
        {
            "policy": int,
            "number": int,  # of the group
            "attempt": int,
            "position": int,  # in the order of the train split
            "row": int,
            "rows": int,  # of the train split at that time
            "least": float,
            "most": float,
            "spread": float,
        },
        pk=("policy", "number", "attempt"),
        not_null={"position", "row", "rows", "least", "most", "spread"},
        foreign_keys=[("policy", "policies", "id")],
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


@migrations()
def m029_environment_processes(db: Database) -> None:
    """The processes of each environment's plugin, and the episodes in them."""
    for column in ("playing", "scoring", "live", "waiting"):
        db.table("environments").add_column(column, int, not_null_default=0)


@migrations()
def m030_dropped_members(db: Database) -> None:
    """What is known of the members that a group closed without, because others were first."""
    db.table("groups").add_column("dropped", str)  # JSON of ``trajectories.Dropped``; NULL: no member was redundant


@migrations()
def m034_open_plays(db: Database) -> None:
    """Members that have ended well of plays that are still open; they go with the row of their play."""
    db.execute(
        """CREATE TABLE open_plays (
            id INTEGER PRIMARY KEY,
            task INTEGER NOT NULL REFERENCES tasks (id),
            number INTEGER NOT NULL,  -- of the group
            policies TEXT NOT NULL,  -- JSON: names of those that are trained on it
            attempt INTEGER NOT NULL,
            instance INTEGER NOT NULL,
            component TEXT NOT NULL,
            environment_version TEXT NOT NULL,
            speaking TEXT NOT NULL,  -- JSON {name: [number, checksum]}: the versions of all who play
            replaced INTEGER NOT NULL,
            lost INTEGER NOT NULL,
            replayed INTEGER NOT NULL,
            created REAL NOT NULL,
            UNIQUE (task, number, policies)
        )"""
    )
    db.execute(
        """CREATE TABLE open_trajectories (
            play INTEGER NOT NULL REFERENCES open_plays (id) ON DELETE CASCADE,
            member INTEGER NOT NULL,
            agent TEXT NOT NULL,
            reward REAL,
            cut INTEGER NOT NULL,
            tokens BLOB NOT NULL,
            mask BLOB NOT NULL,
            logprobs BLOB NOT NULL,
            spans TEXT NOT NULL,
            turns TEXT NOT NULL,
            outcome TEXT,  -- JSON [outcome, outcomes of the plays before, seconds], in a member's first row
            prompt BLOB  -- hash of the first prompt, likewise
        )"""
    )
    db.execute("CREATE INDEX idx_open_trajectories_play ON open_trajectories (play, member)")


@migrations()
def m035_findings(db: Database) -> None:
    """What goes wrong in the learning of a policy: each kind of finding at most once."""
    db.execute(
        """CREATE TABLE findings (
            policy INTEGER NOT NULL REFERENCES policies (id),
            code TEXT NOT NULL,  -- as task files name it
            step INTEGER NOT NULL,  -- at which it was found
            evidence TEXT NOT NULL,  -- JSON {name: value}
            rollouts TEXT NOT NULL,  -- JSON: ids of trajectories that show it
            holds INTEGER NOT NULL,  -- whether it is still so
            pending INTEGER NOT NULL,  -- whether it is to pause its task, which no person has resumed since
            created REAL NOT NULL,
            PRIMARY KEY (policy, code)
        )"""
    )


@migrations()
def m036_order_of_turns(db: Database) -> None:
    """When each turn was said, over all agents of the episode."""
    # JSON: for each of ``turns`` its place among the turns of the episode, from 0; NULL: nobody wrote it down
    for name in ("trajectories", "open_trajectories"):
        db.table(name).add_column("places", str)


@migrations()
def m037_failing(db: Database) -> None:
    """Parameters under which an environment version has only failed, until it succeeds with them."""
    db.execute(
        """CREATE TABLE failing (
            plugin TEXT NOT NULL,
            version TEXT NOT NULL,
            environment TEXT NOT NULL,
            parameters TEXT NOT NULL,
            message TEXT NOT NULL,
            file TEXT NOT NULL,
            line INTEGER NOT NULL,
            rest REAL NOT NULL,  -- seconds of the next rest
            created REAL NOT NULL,
            PRIMARY KEY (plugin, version, environment, parameters)
        )"""
    )


@migrations()
def m039_long_histories(db: Database) -> None:
    """What people wait for takes as long in a home of 100,000 groups as in a new one: counts are kept, not counted."""
    db.execute(
        """CREATE TABLE played (
            policy INTEGER NOT NULL REFERENCES policies (id),
            kind TEXT NOT NULL,  -- train, or eval: also of the split test and of suites
            step INTEGER NOT NULL,  -- as of groups; -1: no step has consumed them
            groups INTEGER NOT NULL,
            failures INTEGER NOT NULL,  -- trajectories of the policy whose episode did not end with status ok
            PRIMARY KEY (policy, step, kind)
        ) WITHOUT ROWID"""
    )
    db.execute(
        f"INSERT INTO played SELECT g.policy, {_kind('g')} AS kind, coalesce(g.step, -1) AS at, count(*),"
        f" total({_FAILED.format(group='g.id')}) FROM groups g GROUP BY g.policy, kind, at"
    )
    for name, body in _KEEPS_COUNT.items():
        db.execute(f"CREATE TRIGGER {name} {body}")
    place = "CASE suite WHEN '' THEN component ELSE suite END"  # as ``ExperienceTable`` asks for the first and newest
    db.execute(f"CREATE INDEX idx_groups_place ON groups (policy, {place})")
    db.execute("DROP INDEX idx_groups_policy_split_step_number")
    db.execute("CREATE INDEX idx_groups_of_step ON groups (policy, split, step, suite, number)")  # as they are listed
    db.execute("CREATE INDEX idx_groups_environment ON groups (environment_version)")
    db.execute("CREATE INDEX idx_evals_score ON evals (policy, suite, split, series, score)")
    db.execute("CREATE INDEX idx_evals_version ON evals (version)")


def _kind(row: str) -> str:
    return f"CASE {row}.split WHEN 'train' THEN 'train' ELSE 'eval' END"


_FAILED = """(SELECT count(*) FROM trajectories j WHERE j."group" = {group} AND j.status != 'ok' AND j.speaker = '')"""
_SAME = "policy = {0}.policy AND kind = {1} AND step = coalesce({0}.step, -1)"
_OLD, _NEW = (_SAME.format(row, _kind(row)) for row in ("OLD", "NEW"))
_ADD = f"""INSERT INTO played VALUES (NEW.policy, {_kind("NEW")}, coalesce(NEW.step, -1), 1, {{failures}})
ON CONFLICT (policy, step, kind) DO UPDATE SET groups = groups + 1, failures = failures + excluded.failures"""
_OWNER = f"""(policy, kind, step) = (SELECT g.policy, {_kind("g")}, coalesce(g.step, -1) FROM groups g
WHERE g.id = {{row}}."group")"""
_MOVED = _FAILED.format(group="NEW.id")
_KEEPS_COUNT = {
    "played_begun": f"AFTER INSERT ON groups BEGIN {_ADD.format(failures=0)}; END",
    "played_gone": f"""AFTER DELETE ON groups BEGIN
        UPDATE played SET groups = groups - 1 WHERE {_OLD};
        DELETE FROM played WHERE {_OLD} AND groups = 0; END""",
    "played_moved": f"""AFTER UPDATE OF step ON groups WHEN OLD.step IS NOT NEW.step BEGIN
        UPDATE played SET groups = groups - 1, failures = failures - {_MOVED} WHERE {_OLD};
        DELETE FROM played WHERE {_OLD} AND groups = 0;
        {_ADD.format(failures=_MOVED)}; END""",
    "played_failed": f"""AFTER INSERT ON trajectories WHEN NEW.status != 'ok' AND NEW.speaker = '' BEGIN
        UPDATE played SET failures = failures + 1 WHERE {_OWNER.format(row="NEW")}; END""",
    "played_removed": f"""AFTER DELETE ON trajectories WHEN OLD.status != 'ok' AND OLD.speaker = '' BEGIN
        UPDATE played SET failures = failures - 1 WHERE {_OWNER.format(row="OLD")}; END""",
}
"""Triggers that keep ``played`` right, whoever writes groups and trajectories, by name."""


@migrations()
def m040_api(db: Database) -> None:
    """Keys with which clients ask the API, what each has used, and the one row on the API itself."""
    db.execute(
        """CREATE TABLE api_keys (
            id INTEGER PRIMARY KEY,
            tenant TEXT NOT NULL,
            name TEXT NOT NULL,  -- what a person calls it; may be empty
            hash BLOB NOT NULL UNIQUE,  -- SHA-256 of the key, which is kept nowhere
            prefix TEXT NOT NULL,  -- how the key begins, for people
            scopes TEXT NOT NULL,  -- JSON: chat, train, admin
            created REAL NOT NULL,
            last_use REAL,  -- NULL: never
            revoked REAL,  -- NULL: it is not
            requests INTEGER NOT NULL DEFAULT 0,  -- that were answered
            tokens_in INTEGER NOT NULL DEFAULT 0,
            tokens_out INTEGER NOT NULL DEFAULT 0
        )"""
    )
    db.execute(
        """CREATE TABLE api (
            id INTEGER PRIMARY KEY CHECK (id = 1),
            switched INTEGER,  -- 1 or 0: a person started or stopped it; NULL: as the settings say
            port INTEGER,  -- at which a person started it; NULL: as the settings say
            open INTEGER NOT NULL,
            url TEXT NOT NULL,  -- empty while it is closed
            since REAL,  -- when it was opened or closed
            note TEXT NOT NULL  -- why it is closed although it should be open
        )"""
    )


@migrations()
def m041_served(db: Database) -> None:
    """What clients are served: the names that tenants give to versions, and the tokens that clients use."""
    db.execute(
        """CREATE TABLE adapter_names (
            tenant TEXT NOT NULL,
            name TEXT NOT NULL,
            version INTEGER NOT NULL REFERENCES versions (id),
            created REAL NOT NULL,
            PRIMARY KEY (tenant, name)
        ) WITHOUT ROWID"""
    )
    db.execute("CREATE INDEX idx_adapter_names_version ON adapter_names (version)")
    db.execute(
        """CREATE TABLE served_usage (
            day TEXT NOT NULL,  -- UTC, 2026-11-21
            tenant TEXT NOT NULL,
            tokens INTEGER NOT NULL,  -- read and sampled
            seconds REAL NOT NULL,  -- of the samplers
            PRIMARY KEY (day, tenant)
        ) WITHOUT ROWID"""
    )


@migrations()
def m042_nodes(db: Database) -> None:
    """The machines of the cluster as the engine last saw them, and those that people drain."""
    db.execute(
        """CREATE TABLE nodes (
            id TEXT PRIMARY KEY,  -- Ray's, another each time that the machine joins
            name TEXT NOT NULL,
            address TEXT NOT NULL,
            alive INTEGER NOT NULL,
            here INTEGER NOT NULL,  -- the engine's own machine
            draining INTEGER NOT NULL,
            refused TEXT NOT NULL,  -- why it is not used, in a sentence; empty: it is
            cores INTEGER NOT NULL,
            memory INTEGER NOT NULL,  -- bytes
            cards TEXT NOT NULL,  -- JSON: those that may be used, in words
            left_out TEXT NOT NULL,  -- JSON: why others are left alone
            clock REAL,  -- seconds ahead of the engine's; NULL: not known
            versions TEXT NOT NULL,  -- in words
            workers TEXT NOT NULL,  -- JSON: names of those that run there
            updated REAL NOT NULL
        ) WITHOUT ROWID"""
    )
    db.execute("CREATE TABLE drains (node TEXT PRIMARY KEY, since REAL NOT NULL) WITHOUT ROWID")


@migrations()
def m043_timing(db: Database) -> None:
    """What a simulation draws from: when what happened in an episode, beside its first trajectory; what samplers read,
    and in how many passes they sampled."""
    # JSON [[[agent, asked, answered], …], over, ended] in seconds since it began; NULL: not known
    db.table("trajectories").add_column("timing", str)
    db.table("stages").add_column("read", int, not_null_default=0)
    db.table("stages").add_column("passes", int, not_null_default=0)


@migrations()
def m044_precision(db: Database) -> None:
    """In which precision an engine samples and trains, in words."""
    db.table("engines").add_column("precision", str, not_null_default="")  # empty: not placed yet


@migrations()
def m045_resumed(db: Database) -> None:
    """At which step a person last put a policy's task into the queue."""
    db.table("policies").add_column("resumed", int, not_null_default=0)
