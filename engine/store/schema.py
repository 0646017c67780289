"""The database schema. Standard library only.

Add a table or column in ``TABLES``, and for older homes in ``UPGRADE``. Arrays are little-endian BLOBs (int32 tokens,
float32 log-probabilities, uint8 masks).
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path, PurePosixPath

from ..errors import DatabaseLocked, DatabaseUnwritable, StoreError

FIRST, LATEST = "m020_casts", "m047_sums"

TABLES = """
CREATE TABLE IF NOT EXISTS tenants (
    name TEXT PRIMARY KEY,
    weight REAL NOT NULL,
    created REAL NOT NULL,
    tasks INTEGER NOT NULL DEFAULT 0,  -- that may run at the same time; 0: no quota
    tokens_per_day INTEGER NOT NULL DEFAULT 0  -- 0: no quota
);
CREATE TABLE IF NOT EXISTS tasks (
    id INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    environment TEXT NOT NULL,
    state TEXT NOT NULL DEFAULT 'submitted',
    reason TEXT DEFAULT '',
    config TEXT NOT NULL,  -- JSON: the whole task file with defaults filled
    source TEXT DEFAULT '',  -- the task file as its author wrote it
    priority INTEGER DEFAULT 0,
    steps INTEGER NOT NULL,
    created REAL NOT NULL,
    started REAL,
    finished REAL,
    seconds REAL DEFAULT 0.0,  -- running time over all incarnations
    base TEXT NOT NULL DEFAULT '',  -- fingerprint; empty: the next engine writes down the base that it serves
    family TEXT NOT NULL DEFAULT '',  -- the name of the sweep that the task is of
    retried INTEGER NOT NULL DEFAULT 0,  -- since a person last put it into the queue
    due REAL,  -- time of the next try; NULL: none is due
    cause TEXT NOT NULL DEFAULT '',  -- which try that is, and what it is for
    start INTEGER,  -- id of the version that its version 0 is; NULL: it begins untrained
    reason_code TEXT NOT NULL DEFAULT '',  -- of ``ReasonCode``
    kind TEXT NOT NULL DEFAULT 'train'  -- train or eval
);
CREATE INDEX IF NOT EXISTS idx_tasks_state ON tasks (state);
CREATE INDEX IF NOT EXISTS idx_tasks_start ON tasks (start) WHERE start IS NOT NULL;
CREATE TABLE IF NOT EXISTS commands (
    id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    task INTEGER REFERENCES tasks (id),
    arguments TEXT DEFAULT '{}',
    created REAL NOT NULL,
    done REAL,
    outcome TEXT DEFAULT ''
);
CREATE TABLE IF NOT EXISTS policies (
    id INTEGER PRIMARY KEY,
    task INTEGER NOT NULL REFERENCES tasks (id),
    name TEXT NOT NULL,
    config TEXT NOT NULL,
    step INTEGER NOT NULL,
    sampler TEXT NOT NULL DEFAULT '',  -- the kind that the policy must stay with; empty: any
    split TEXT NOT NULL DEFAULT 'eval',  -- on which its score is measured; test: of an evaluation on that split
    resumed INTEGER NOT NULL DEFAULT 0,  -- the step at which a person last put the task into the queue
    -- Sums of these metrics over its steps, as ``VersionTable`` writes them.
    tokens INTEGER NOT NULL DEFAULT 0,
    lost INTEGER NOT NULL DEFAULT 0,  -- episodes that failed each time
    errors INTEGER NOT NULL DEFAULT 0  -- those of them that stayed in a group
);
CREATE UNIQUE INDEX IF NOT EXISTS idx_policies_task_name ON policies (task, name);
CREATE TABLE IF NOT EXISTS versions (
    id INTEGER PRIMARY KEY,
    policy INTEGER NOT NULL REFERENCES policies (id),
    number INTEGER NOT NULL,  -- optimizer steps made
    name TEXT NOT NULL,  -- unique for ever: names the incarnation that made it
    incarnation INTEGER NOT NULL,
    state TEXT NOT NULL,  -- committed, void (its file did not verify) or pruned (its file was removed)
    checksum TEXT NOT NULL,
    path TEXT NOT NULL,  -- relative to the home
    size INTEGER DEFAULT 0,
    label TEXT DEFAULT '',  -- empty, best, last, or both
    created REAL NOT NULL,
    resumable INTEGER NOT NULL DEFAULT 1,  -- 0: its file holds no moments
    restarted INTEGER NOT NULL DEFAULT 0  -- 1: the optimizer began with moments of zero here
);
CREATE UNIQUE INDEX IF NOT EXISTS idx_versions_name ON versions (name);
CREATE INDEX IF NOT EXISTS idx_versions_policy_number ON versions (policy, number);
-- Few of a long run's versions are kept or labelled; queries for those should not read all versions.
CREATE INDEX IF NOT EXISTS idx_versions_kept ON versions (policy, number) WHERE state = 'committed';
CREATE INDEX IF NOT EXISTS idx_versions_labelled ON versions (policy) WHERE label != '';
CREATE TABLE IF NOT EXISTS steps (
    id INTEGER PRIMARY KEY,
    policy INTEGER NOT NULL REFERENCES policies (id),
    number INTEGER NOT NULL,
    version INTEGER NOT NULL REFERENCES versions (id),
    incarnation INTEGER,
    seconds REAL,
    created REAL NOT NULL,
    environment_version TEXT NOT NULL DEFAULT ''  -- of its newest group: if it changes, rewards may jump
);
CREATE UNIQUE INDEX IF NOT EXISTS idx_steps_policy_number ON steps (policy, number);
CREATE TABLE IF NOT EXISTS metrics (
    policy INTEGER REFERENCES policies (id),
    step INTEGER,
    name TEXT,
    value REAL,
    PRIMARY KEY (policy, step, name)
);
-- Covers the queue's query without the table.
CREATE INDEX IF NOT EXISTS idx_metrics_policy_name_step_value ON metrics (policy, name, step, value);
CREATE TABLE IF NOT EXISTS evals (
    id INTEGER PRIMARY KEY,
    policy INTEGER NOT NULL REFERENCES policies (id),
    step INTEGER NOT NULL,
    version INTEGER REFERENCES versions (id),
    environment_version TEXT NOT NULL,
    series TEXT NOT NULL,  -- the key of what scores compare on
    suite TEXT NOT NULL DEFAULT '',  -- empty: the task's own held-out prompts
    split TEXT NOT NULL DEFAULT 'eval',  -- eval or test
    score REAL,  -- avg@k; NULL: too many episodes failed
    stderr REAL,
    n INTEGER NOT NULL,  -- episodes with a reward
    failures INTEGER DEFAULT 0,  -- episodes without a reward after all tries
    prompts INTEGER DEFAULT 0,  -- distinct ones
    samples INTEGER DEFAULT 1,  -- episodes of each prompt, k
    best_of REAL,  -- best@k; NULL if k is 1
    pass_at REAL,  -- pass@k; NULL if k is 1
    floor REAL,  -- best constant answer on the same prompts; NULL: unknown
    metrics TEXT DEFAULT '{}',
    created REAL NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS idx_evals_policy_series_suite_split_step
    ON evals (policy, series, suite, split, step);
-- The newest evaluation of a policy is the last of its entries here.
CREATE INDEX IF NOT EXISTS idx_evals_policy_suite_split ON evals (policy, suite, split);
CREATE INDEX IF NOT EXISTS idx_evals_score ON evals (policy, suite, split, series, score);
CREATE INDEX IF NOT EXISTS idx_evals_version ON evals (version);
CREATE TABLE IF NOT EXISTS groups (
    id INTEGER PRIMARY KEY,
    policy INTEGER NOT NULL REFERENCES policies (id),
    split TEXT NOT NULL,
    number INTEGER NOT NULL,  -- in the policy's sequence of training groups; in an evaluation the prompt's
    instance INTEGER NOT NULL,
    version INTEGER NOT NULL,  -- number of the policy version that its episodes were sampled from
    environment_version TEXT NOT NULL,
    state TEXT NOT NULL,  -- complete or consumed
    step INTEGER,  -- the step that consumed it; for an evaluation the step evaluated
    created REAL NOT NULL,
    replaced INTEGER NOT NULL DEFAULT 0,  -- groups of equal rewards before it
    shrunk INTEGER NOT NULL DEFAULT 0,  -- 1: the arrays of its trajectories are gone
    -- float16: the logarithm of the importance weight, trainer over sampler, of each token that a policy sampled, one
    -- trajectory after the other; NaN in those not trained on. NULL: the group went through no pass.
    weights BLOB,
    play INTEGER,  -- the first group of the same play; NULL: it is that group
    suite TEXT NOT NULL DEFAULT '',  -- empty: the task's own environment
    -- Of an evaluation: JSON [{agent: reward}, …] by member, of the measured policy's agents, silent ones included.
    rewards TEXT,
    lost INTEGER NOT NULL DEFAULT 0,  -- members that failed each time
    replayed INTEGER NOT NULL DEFAULT 0,  -- episodes that were run again
    component TEXT NOT NULL DEFAULT '',  -- which environment of a mixture; empty: the task has no mixture
    dropped TEXT  -- JSON of ``trajectories.Dropped``; NULL: no member was redundant
);
CREATE UNIQUE INDEX IF NOT EXISTS idx_groups_policy_split_number_step_environment_version_suite
    ON groups (policy, split, number, step, environment_version, suite);
CREATE INDEX IF NOT EXISTS idx_groups_whole ON groups (policy, step) WHERE shrunk = 0;
-- As ``ExperienceTable`` asks for the first and the newest.
CREATE INDEX IF NOT EXISTS idx_groups_place ON groups (policy, CASE suite WHEN '' THEN component ELSE suite END);
CREATE INDEX IF NOT EXISTS idx_groups_of_step ON groups (policy, split, step, suite, number);
CREATE INDEX IF NOT EXISTS idx_groups_environment ON groups (environment_version);
CREATE TABLE IF NOT EXISTS trajectories (
    id INTEGER PRIMARY KEY,
    "group" INTEGER NOT NULL REFERENCES groups (id),
    member INTEGER NOT NULL,
    agent TEXT NOT NULL,
    status TEXT NOT NULL,
    reward REAL,  -- NULL: the episode has none
    advantage REAL,
    tokens BLOB,
    mask BLOB,
    logprobs BLOB,
    spans TEXT,  -- JSON [[start, stop, version], …]
    turns TEXT,  -- JSON [{"role", "text"}, …], for people to read
    parts TEXT,
    metrics TEXT,
    failure TEXT,
    seconds REAL,
    cut INTEGER NOT NULL DEFAULT 0,  -- 1: the length limit ended the episode
    length INTEGER,  -- in tokens, if the arrays are gone; else NULL
    paid TEXT,  -- in an agent's first trajectory: JSON [[turns, amount, name], …] of its turns' rewards; NULL: none
    speaker TEXT NOT NULL DEFAULT '',  -- a policy that is not trained on it; else empty
    places TEXT,  -- JSON: for each of ``turns`` its place among the turns of the episode, from 0; NULL: unknown
    -- In an episode's first trajectory: JSON [[[agent, asked, answered], …], over, ended] in seconds since it began.
    timing TEXT
);
CREATE INDEX IF NOT EXISTS idx_trajectories_conversations ON trajectories ("group", member, agent);
CREATE INDEX IF NOT EXISTS idx_trajectories_failed ON trajectories ("group", member, agent) WHERE status != 'ok';
-- How many groups there are, kept by the triggers below, so that a home of 100,000 groups opens as fast as a new one.
CREATE TABLE IF NOT EXISTS played (
    policy INTEGER NOT NULL REFERENCES policies (id),
    kind TEXT NOT NULL,  -- train, or eval: also of the split test and of suites
    step INTEGER NOT NULL,  -- as of groups; -1: no step has consumed them
    groups INTEGER NOT NULL,
    failures INTEGER NOT NULL,  -- trajectories of the policy whose episode did not end with status ok
    PRIMARY KEY (policy, step, kind)
) WITHOUT ROWID;
CREATE TRIGGER IF NOT EXISTS played_begun AFTER INSERT ON groups BEGIN
    INSERT INTO played VALUES (NEW.policy, iif(NEW.split = 'train', 'train', 'eval'), coalesce(NEW.step, -1), 1, 0)
        ON CONFLICT (policy, step, kind) DO UPDATE SET groups = groups + 1;
END;
CREATE TRIGGER IF NOT EXISTS played_gone AFTER DELETE ON groups BEGIN
    UPDATE played SET groups = groups - 1 WHERE policy = OLD.policy AND step = coalesce(OLD.step, -1)
        AND kind = iif(OLD.split = 'train', 'train', 'eval');
    DELETE FROM played WHERE policy = OLD.policy AND step = coalesce(OLD.step, -1)
        AND kind = iif(OLD.split = 'train', 'train', 'eval') AND groups = 0;
END;
CREATE TRIGGER IF NOT EXISTS played_moved AFTER UPDATE OF step ON groups WHEN OLD.step IS NOT NEW.step BEGIN
    UPDATE played SET groups = groups - 1, failures = failures - (SELECT count(*) FROM trajectories j
            WHERE j."group" = NEW.id AND j.status != 'ok' AND j.speaker = '')
        WHERE policy = OLD.policy AND step = coalesce(OLD.step, -1)
            AND kind = iif(OLD.split = 'train', 'train', 'eval');
    DELETE FROM played WHERE policy = OLD.policy AND step = coalesce(OLD.step, -1)
        AND kind = iif(OLD.split = 'train', 'train', 'eval') AND groups = 0;
    INSERT INTO played VALUES (NEW.policy, iif(NEW.split = 'train', 'train', 'eval'), coalesce(NEW.step, -1), 1,
        (SELECT count(*) FROM trajectories j WHERE j."group" = NEW.id AND j.status != 'ok' AND j.speaker = ''))
        ON CONFLICT (policy, step, kind) DO UPDATE SET groups = groups + 1, failures = failures + excluded.failures;
END;
CREATE TRIGGER IF NOT EXISTS played_failed AFTER INSERT ON trajectories
    WHEN NEW.status != 'ok' AND NEW.speaker = '' BEGIN
    UPDATE played SET failures = failures + 1 WHERE (policy, kind, step) = (SELECT g.policy,
        iif(g.split = 'train', 'train', 'eval'), coalesce(g.step, -1) FROM groups g WHERE g.id = NEW."group");
END;
CREATE TRIGGER IF NOT EXISTS played_removed AFTER DELETE ON trajectories
    WHEN OLD.status != 'ok' AND OLD.speaker = '' BEGIN
    UPDATE played SET failures = failures - 1 WHERE (policy, kind, step) = (SELECT g.policy,
        iif(g.split = 'train', 'train', 'eval'), coalesce(g.step, -1) FROM groups g WHERE g.id = OLD."group");
END;
-- Groups that are still open, with their members that have ended well.
CREATE TABLE IF NOT EXISTS open_plays (
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
);
CREATE TABLE IF NOT EXISTS open_trajectories (
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
    prompt BLOB,  -- hash of the first prompt, likewise
    places TEXT
);
CREATE INDEX IF NOT EXISTS idx_open_trajectories_play ON open_trajectories (play, member);
-- Which rows groups drew and what came of it, for tasks that sample by difficulty.
CREATE TABLE IF NOT EXISTS draws (
    policy INTEGER REFERENCES policies (id),
    number INTEGER,  -- of the group
    attempt INTEGER,
    position INTEGER NOT NULL,  -- in the order of the train split
    row INTEGER NOT NULL,
    rows INTEGER NOT NULL,  -- of the train split at that time
    least REAL NOT NULL,
    most REAL NOT NULL,
    spread REAL NOT NULL,
    PRIMARY KEY (policy, number, attempt)
);
CREATE TABLE IF NOT EXISTS dependencies (
    task INTEGER REFERENCES tasks (id),  -- waits until the next is done
    needs INTEGER,
    PRIMARY KEY (task, needs)
);
-- Versions of other tasks that a task refers to.
CREATE TABLE IF NOT EXISTS borrowed (
    task INTEGER REFERENCES tasks (id),
    words TEXT,  -- as the task file has them: "17@best"
    version INTEGER NOT NULL REFERENCES versions (id),
    plays INTEGER NOT NULL,  -- 1: it is played with while the task runs; 0: training begins from it
    PRIMARY KEY (task, words)
);
CREATE INDEX IF NOT EXISTS idx_borrowed_version ON borrowed (version);
-- What people should know of a task.
CREATE TABLE IF NOT EXISTS warnings (
    task INTEGER,
    about TEXT,  -- what it is of, such as a line of code
    message TEXT NOT NULL,
    created REAL NOT NULL,
    PRIMARY KEY (task, about)
);
-- What goes wrong in the learning of a policy: each kind of finding at most once.
CREATE TABLE IF NOT EXISTS findings (
    policy INTEGER NOT NULL REFERENCES policies (id),
    code TEXT NOT NULL,  -- as task files name it
    step INTEGER NOT NULL,  -- at which it was found
    evidence TEXT NOT NULL,  -- JSON {name: value}
    rollouts TEXT NOT NULL,  -- JSON: ids of trajectories that show it
    holds INTEGER NOT NULL,  -- whether it is still so
    pending INTEGER NOT NULL,  -- whether it is to pause its task, which no person has resumed since
    created REAL NOT NULL,
    PRIMARY KEY (policy, code)
);
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY,
    task INTEGER,
    level TEXT NOT NULL,
    kind TEXT NOT NULL,
    message TEXT NOT NULL,
    created REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS idx_events_task ON events (task);
CREATE TABLE IF NOT EXISTS engines (
    incarnation INTEGER PRIMARY KEY,
    pid INTEGER NOT NULL,
    state TEXT NOT NULL,
    started REAL NOT NULL,
    heartbeat REAL NOT NULL,
    base TEXT DEFAULT '',
    note TEXT DEFAULT '',
    fingerprint TEXT NOT NULL DEFAULT '',  -- of the base
    sampler TEXT NOT NULL DEFAULT '',
    rest TEXT NOT NULL DEFAULT '',  -- why it has no workers: yielded, hours or idle; empty: it has
    rest_until REAL,
    placement TEXT NOT NULL DEFAULT '',  -- the plan and its reasons, in lines; empty: not placed yet
    version TEXT NOT NULL DEFAULT '',  -- of marlaas: programs of another version ask for a restart
    precision TEXT NOT NULL DEFAULT ''  -- in words; empty: not placed yet
);
CREATE TABLE IF NOT EXISTS workers (
    name TEXT PRIMARY KEY,
    pid INTEGER,
    state TEXT,
    rss INTEGER,
    busy REAL,
    started REAL,
    updated REAL,
    device TEXT NOT NULL DEFAULT ''  -- "core 0", "gpus 0-1"; empty: not known
);
CREATE TABLE IF NOT EXISTS environments (
    name TEXT PRIMARY KEY,
    version TEXT,
    state TEXT,
    parameters TEXT,  -- JSON
    description TEXT,
    message TEXT,
    file TEXT,
    line INTEGER,
    path TEXT,
    updated REAL,
    agents TEXT NOT NULL DEFAULT '[]',  -- JSON: names; empty if it declares none
    rows TEXT NOT NULL DEFAULT 'own',  -- own, task; empty: it has none
    playing INTEGER NOT NULL DEFAULT 0,  -- processes of its plugin, and the episodes in them
    scoring INTEGER NOT NULL DEFAULT 0,
    live INTEGER NOT NULL DEFAULT 0,
    waiting INTEGER NOT NULL DEFAULT 0
);
-- Findings of the checks, by environment ("plugin/environment") and version.
CREATE TABLE IF NOT EXISTS conformance (
    environment TEXT,
    version TEXT,
    base TEXT NOT NULL,  -- fingerprint of the base whose tokens were counted
    findings TEXT NOT NULL,  -- JSON [{"check", "level", "message"}, …]
    created REAL NOT NULL,
    PRIMARY KEY (environment, version)
);
-- Parameters under which an environment version has only failed, until it succeeds with them.
CREATE TABLE IF NOT EXISTS failing (
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
);
-- How episodes ended, also those of groups that never closed.
CREATE TABLE IF NOT EXISTS outcomes (
    begun INTEGER,  -- start of the minute or hour that the row sums up
    environment TEXT,
    version TEXT,
    status TEXT,  -- ok, skip, timeout, error, cancelled
    bucket INTEGER,  -- of the episodes' seconds: four to each doubling; 1 s begins bucket 0
    episodes INTEGER NOT NULL,
    PRIMARY KEY (begun, environment, version, status, bucket)
);
CREATE TABLE IF NOT EXISTS failures (
    environment TEXT,
    version TEXT,
    message TEXT NOT NULL,
    file TEXT NOT NULL,
    line INTEGER NOT NULL,
    created REAL NOT NULL,
    PRIMARY KEY (environment, version)
);
CREATE TABLE IF NOT EXISTS usage (
    day TEXT,  -- UTC, 2026-11-21
    task INTEGER REFERENCES tasks (id),
    stage TEXT,
    tokens INTEGER NOT NULL,
    seconds REAL NOT NULL,
    PRIMARY KEY (day, task, stage)
);
CREATE INDEX IF NOT EXISTS idx_usage_task ON usage (task);
CREATE TABLE IF NOT EXISTS stages (
    id INTEGER PRIMARY KEY,
    incarnation INTEGER NOT NULL,
    stage TEXT NOT NULL,  -- rollout, environment, training, engine
    device TEXT DEFAULT '',  -- the cores or the GPU
    begun REAL NOT NULL,
    wall REAL NOT NULL,  -- seconds that the row covers
    busy REAL NOT NULL,  -- seconds of them with useful work
    waiting REAL DEFAULT 0.0,  -- requests that waited, on average
    active REAL DEFAULT 0.0,
    ended INTEGER DEFAULT 0,  -- turns, episodes or calls
    tokens INTEGER NOT NULL DEFAULT 0,
    read INTEGER NOT NULL DEFAULT 0,  -- tokens of prompts
    passes INTEGER NOT NULL DEFAULT 0  -- in which samplers sampled
);
CREATE INDEX IF NOT EXISTS idx_stages_stage_begun ON stages (stage, begun);
CREATE TABLE IF NOT EXISTS standings (  -- of this moment only
    stage TEXT,
    tenant TEXT,
    waiting INTEGER NOT NULL,
    behind REAL NOT NULL,
    PRIMARY KEY (stage, tenant)
);
CREATE TABLE IF NOT EXISTS yields (  -- a row at most
    id INTEGER PRIMARY KEY,
    since REAL NOT NULL,
    until REAL
);
CREATE TABLE IF NOT EXISTS devices (
    uuid TEXT PRIMARY KEY,
    place INTEGER NOT NULL,  -- in the driver's order
    label TEXT NOT NULL,  -- gpu 0
    name TEXT NOT NULL,
    memory INTEGER NOT NULL,
    free INTEGER NOT NULL,
    utilisation REAL,
    reason TEXT NOT NULL,  -- why it is not used; empty: it may be used
    holders TEXT NOT NULL,  -- JSON [{"pid", "account", "memory", "ours", "screen"}, …]
    updated REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS nodes (
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
    left_out TEXT NOT NULL,  -- JSON: why others are left out
    clock REAL,  -- seconds ahead of the engine's; NULL: not known
    versions TEXT NOT NULL,  -- in words
    workers TEXT NOT NULL,  -- JSON: names of those that run there
    updated REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS drains (node TEXT PRIMARY KEY, since REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS api_keys (
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
);
CREATE TABLE IF NOT EXISTS api (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    switched INTEGER,  -- 1 or 0: a person started or stopped it; NULL: as the settings say
    port INTEGER,  -- at which a person started it; NULL: as the settings say
    open INTEGER NOT NULL,
    url TEXT NOT NULL,  -- empty while it is closed
    since REAL,  -- when it was opened or closed
    note TEXT NOT NULL  -- why it is closed although it should be open
);
-- Names that tenants give to versions for their clients.
CREATE TABLE IF NOT EXISTS adapter_names (
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    version INTEGER NOT NULL REFERENCES versions (id),
    created REAL NOT NULL,
    PRIMARY KEY (tenant, name)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS idx_adapter_names_version ON adapter_names (version);
CREATE TABLE IF NOT EXISTS served_usage (
    day TEXT NOT NULL,  -- UTC, 2026-11-21
    tenant TEXT NOT NULL,
    tokens INTEGER NOT NULL,  -- read and sampled
    seconds REAL NOT NULL,  -- of the samplers
    PRIMARY KEY (day, tenant)
) WITHOUT ROWID;
"""
SUMS = "UPDATE policies SET " + ", ".join(
    f"{name} = (SELECT total(value) FROM metrics WHERE policy = policies.id AND name = '{name}')"
    for name in ("tokens", "lost", "errors")
)
UPGRADE = f"""
ALTER TABLE tasks ADD COLUMN reason_code TEXT NOT NULL DEFAULT '';
ALTER TABLE tasks ADD COLUMN kind TEXT NOT NULL DEFAULT 'train';
ALTER TABLE policies ADD COLUMN split TEXT NOT NULL DEFAULT 'eval';
ALTER TABLE policies ADD COLUMN resumed INTEGER NOT NULL DEFAULT 0;
ALTER TABLE policies ADD COLUMN tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE policies ADD COLUMN lost INTEGER NOT NULL DEFAULT 0;
ALTER TABLE policies ADD COLUMN errors INTEGER NOT NULL DEFAULT 0;
{SUMS};
ALTER TABLE groups ADD COLUMN suite TEXT NOT NULL DEFAULT '';
ALTER TABLE groups ADD COLUMN rewards TEXT;
ALTER TABLE groups ADD COLUMN lost INTEGER NOT NULL DEFAULT 0;
ALTER TABLE groups ADD COLUMN replayed INTEGER NOT NULL DEFAULT 0;
ALTER TABLE groups ADD COLUMN component TEXT NOT NULL DEFAULT '';
ALTER TABLE groups ADD COLUMN dropped TEXT;
ALTER TABLE trajectories ADD COLUMN places TEXT;
ALTER TABLE trajectories ADD COLUMN timing TEXT;
ALTER TABLE engines ADD COLUMN version TEXT NOT NULL DEFAULT '';
ALTER TABLE engines ADD COLUMN precision TEXT NOT NULL DEFAULT '';
ALTER TABLE environments ADD COLUMN rows TEXT NOT NULL DEFAULT 'own';
ALTER TABLE environments ADD COLUMN playing INTEGER NOT NULL DEFAULT 0;
ALTER TABLE environments ADD COLUMN scoring INTEGER NOT NULL DEFAULT 0;
ALTER TABLE environments ADD COLUMN live INTEGER NOT NULL DEFAULT 0;
ALTER TABLE environments ADD COLUMN waiting INTEGER NOT NULL DEFAULT 0;
ALTER TABLE stages ADD COLUMN read INTEGER NOT NULL DEFAULT 0;
ALTER TABLE stages ADD COLUMN passes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE evals RENAME TO earlier_evals;
DROP INDEX idx_groups_policy_split_number_step_environment_version;
DROP INDEX idx_groups_policy_split_step_number;
{TABLES}
-- Each episode counted as a prompt, and a series was an environment version.
INSERT INTO evals (id, policy, step, version, environment_version, score, stderr, n, floor, metrics, created, series,
                   prompts)
    SELECT id, policy, step, version, environment_version, score, stderr, n, floor, metrics, created,
           environment_version, n FROM earlier_evals;
DROP TABLE earlier_evals;
UPDATE tasks SET reason_code = 'failed' WHERE state = 'failed';
UPDATE tasks SET reason_code = iif(reason = 'paused by a person', 'person', 'itself') WHERE state = 'paused';
-- A path was absolute. What is between ``adapters/`` and the suffix is the version's name, wherever the home was.
UPDATE versions SET path = 'adapters/' || name || '.safetensors'
    WHERE substr(path, -length('/adapters/' || name || '.safetensors')) = '/adapters/' || name || '.safetensors';
INSERT INTO played
    SELECT g.policy, iif(g.split = 'train', 'train', 'eval') AS kind, coalesce(g.step, -1) AS at, count(*),
           total((SELECT count(*) FROM trajectories j WHERE j."group" = g.id AND j.status != 'ok' AND j.speaker = ''))
    FROM groups g GROUP BY g.policy, kind, at;
"""
_APPLIED = "SELECT max(name) FROM _sqlite_migrations WHERE migration_set = 'marlaas'"
_UNWRITABLE = {
    sqlite3.SQLITE_FULL: "Free some space",
    sqlite3.SQLITE_IOERR: "Look at the disk, and free some space",
    sqlite3.SQLITE_READONLY: "Mount the home's disk for writing, or choose another --home",
}


def read_only(database: Path) -> str:
    """The path may hold ``#``, ``?`` and ``%``."""
    return f"{database.absolute().as_uri()}?mode=ro"


def applied(connection: sqlite3.Connection) -> str:
    """Newest schema; empty: none. Raises ``sqlite3.Error``."""
    try:
        return str(connection.cursor().execute(_APPLIED).fetchone()[0] or "")
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            return ""
        raise


def refuse_newer(connection: sqlite3.Connection) -> None:
    """Raise ``StoreError`` for a newer schema; an unreadable one is not newer."""
    with suppress(sqlite3.Error):
        if applied(connection) > LATEST:
            raise StoreError("A newer marlaas has changed the database.", "Update marlaas, or use another --home.")


def is_current(database: Path) -> bool:
    """False if missing or damaged."""
    if not database.exists():
        return False
    try:
        with closing(sqlite3.connect(read_only(database), uri=True, timeout=5)) as connection:
            return applied(connection) >= LATEST
    except sqlite3.Error:
        return False


@contextmanager
def guarded(database: Path | None = None) -> Iterator[None]:
    """Turn sqlite's errors into ``StoreError``; outside of the engine give ``database``."""
    try:
        yield
    except sqlite3.Error as error:
        raise explained(error, database) from error


def explained(error: sqlite3.Error, database: Path | None = None) -> StoreError:
    """``database`` as in ``guarded``."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    where = {"where": str(database)} if database else {}
    unwritten = f"{'the' if database else 'The'} database cannot be written: {error}."
    if hint := _UNWRITABLE.get(code):
        return DatabaseUnwritable(unwritten, f"{hint}; nothing that was committed is lost.", **where)
    if database:
        return StoreError(unwritten, **where)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return DatabaseLocked(f"Another program holds the database: {error}.", "It is tried again by itself.")
    damaged = "malformed" in str(error) or "not a database" in str(error)
    hint = "Move marlaas.db out of the home to start with an empty one; adapters/ keeps the trained adapters."
    return StoreError(f"The database cannot be used: {error}.", hint if damaged else "")


@contextmanager
def outside_transaction(database: Path) -> Iterator[sqlite3.Connection]:
    """A short write transaction. Raises ``StoreError``."""
    if not database.exists():
        raise StoreError(f"There is no database at {database}.", "`marlaas engine start` makes one.")
    with guarded(database), closing(sqlite3.connect(database, timeout=30, isolation_level=None)) as connection:
        refuse_newer(connection)
        connection.execute("BEGIN IMMEDIATE")
        yield connection
        connection.execute("COMMIT")


FOLDER = "backups"
"""Copies from before upgrades, for the marlaas that made them."""
PAGES = 2_000
_PLACE = "CASE WHEN path LIKE '/%' THEN 'adapters/' || name || '.safetensors' ELSE path END"
"""A version's path relative to the home; 0.1.0 stored absolute paths."""


def keep_copy(connection: sqlite3.Connection, database: Path, schema: str) -> None:
    """Copy a database in use, before its tables change. Raises ``StoreError``.

    Named by ``schema`` and time.
    """
    from marlaas.plugins.durable import to_disk  # loads asyncio with the plugins' API

    folder = database.absolute().parent / FOLDER
    unfinished = folder / "unfinished.part"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        os.close(os.open(unfinished, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600))
        with closing(sqlite3.connect(unfinished)) as target:
            connection.backup(target)
        to_disk(unfinished)
        unfinished.replace(folder / f"{schema}-{time.strftime('%Y%m%d-%H%M%S')}.db")
        to_disk(folder)
    except (OSError, sqlite3.Error) as error:
        with suppress(OSError):
            unfinished.unlink()
        why = getattr(error, "strerror", None) or str(error)
        raise StoreError(
            f"the database is of an older marlaas, and no copy of it could be made in {folder}: {why}.",
            "Nothing was changed; the copy needs as much room as the database.",
            where=str(database),
        ) from error


class Held:
    """A snapshot, held by a read transaction; an engine may commit meanwhile."""

    def __init__(self, database: Path) -> None:
        with guarded():
            self._connection = sqlite3.connect(read_only(database), uri=True, timeout=30, isolation_level=None)

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def renew(self) -> list[str]:
        """Returns the files of committed versions, relative to the home.

        Raises ``StoreError``, also for a newer marlaas, and names that lead out of a home.
        """
        with guarded():
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            self._connection.execute("BEGIN")
            _check(self._connection)
            return [
                place
                for (place,) in self._connection.execute(
                    f"SELECT {_PLACE} FROM versions WHERE state = 'committed' ORDER BY id"
                )
            ]

    def size(self) -> int:
        with guarded():
            return int(
                self._connection.execute(
                    "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
                ).fetchone()[0]
            )

    def copy(self, target: Path) -> None:
        with guarded(), closing(sqlite3.connect(target, isolation_level=None)) as copy:
            copy.execute("PRAGMA locking_mode = EXCLUSIVE")  # no shared memory: not every disk has it
            self._connection.backup(copy, pages=PAGES)
            copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a write-ahead log
            copy.execute(f"UPDATE versions SET path = {_PLACE}")


def check_copy(database: Path) -> int:
    """Check a copy to restore; returns its number of tasks.

    Raises ``StoreError`` if damaged, newer, or with files outside of a home.
    """
    with guarded(), closing(sqlite3.connect(f"{read_only(database)}&immutable=1", uri=True)) as connection:
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise StoreError(f"The database in the backup is damaged: {verdict}.")
        _check(connection)
        return int(connection.execute("SELECT count(*) FROM tasks").fetchone()[0])


def _check(connection: sqlite3.Connection) -> None:
    refuse_newer(connection)
    for (place,) in connection.execute(f"SELECT DISTINCT {_PLACE} FROM versions"):
        parts = PurePosixPath(place).parts
        if not parts or parts[0] != "adapters" or ".." in parts:
            raise StoreError(f"The database names a state file outside of its home: {place!r}.")
