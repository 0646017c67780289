"""Reads of adapter versions: those whose files are kept, their names, their matches and scores."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..rows import FINISHED, EvalRow, VersionRow
from ..score_basis import BASIS
from ..shown_state import shown_state
from .policies import POLICY
from .reader import Reader

# Reads the adapter versions whose files are kept, with what a person chooses by. Standard library only.
#
# A policy's mark changes when its kept versions do, so that only those of changed policies need be read again.

_KEPT = f"""
SELECT v.id, t.id AS task, t.tenant, t.name AS task_name, p.name AS policy, v.number, v.name, v.state, v.label,
       e.score, CASE WHEN e.id IS NOT NULL THEN {BASIS} END AS basis, v.checksum, v.path, v.size,
       v.created, v.resumable, v.policy AS policy_id, {shown_state("t")} AS task_state, t.environment, t.steps
FROM versions v JOIN policies p ON p.id = v.policy JOIN tasks t ON t.id = p.task
LEFT JOIN evals e ON e.id =
    (SELECT max(id) FROM evals WHERE version = v.id AND +policy = v.policy AND step = v.number
        AND suite = '' AND split = 'eval')
WHERE v.state = 'committed'
"""
"""The plus sign keeps sqlite from looking through all evaluations of the policy."""
_MARKS = f"""
SELECT v.policy, max(v.id), count(*), total(v.size), group_concat(v.label), {shown_state("t")}, t.steps,
       (SELECT id FROM evals WHERE policy = v.policy AND suite = '' AND split = 'eval' ORDER BY id DESC LIMIT 1)
FROM versions v JOIN policies p ON p.id = v.policy JOIN tasks t ON t.id = p.task
WHERE v.state = 'committed' GROUP BY v.policy
"""
_OWN = ("policy_id", "task_state", "environment", "steps")

KeptMarks = Mapping[int, tuple[object, ...]]
"""By policy: a value that differs once anything about its kept versions has changed."""


@dataclass(frozen=True)
class KeptVersion:
    """A version whose file is on the disk, with its task."""

    row: VersionRow
    policy_id: int
    task_state: str
    environment: str
    steps: int
    """Steps that the task is to make."""

    @property
    def label(self) -> str:
        """best, last, both, or final: the last version of a finished task."""
        last = "final" if self.task_state in FINISHED else "last"
        return self.row.label.replace("last", last)


def kept_marks(reader: Reader) -> KeptMarks:
    """The marks of all policies that have a version on the disk."""
    return {row[0]: tuple(row) for row in reader.all(_MARKS)}


def kept_versions(reader: Reader, policies: Iterable[int]) -> list[KeptVersion]:
    """The kept versions of some policies, in no order."""
    wanted = ",".join(str(int(policy)) for policy in policies)
    return [_kept(reader, row) for row in reader.all(f"{_KEPT} AND v.policy IN ({wanted})")]


def _kept(reader: Reader, row: sqlite3.Row) -> KeptVersion:
    values = dict(row)
    own = {name: values.pop(name) for name in _OWN}
    return KeptVersion(reader.version(values), **own)


# Reads the names that tenants have given to versions. Standard library only.


@dataclass(frozen=True)
class GivenName:
    """A name under which the clients of a tenant find a version."""

    tenant: str
    name: str
    task: int
    policy: str
    number: int
    version: str
    """The version's own name."""
    kept: bool
    """Whether its file is on the disk: else the name means nothing any more."""


def given_names(reader: Reader) -> list[GivenName]:
    """All of them, by tenant and name."""
    rows = reader.all(
        "SELECT n.tenant, n.name, p.task, p.name AS policy, v.number, v.name AS version, v.state = 'committed' AS kept"
        " FROM adapter_names n JOIN versions v ON v.id = n.version JOIN policies p ON p.id = v.policy"
        " ORDER BY n.tenant, n.name"
    )
    return [GivenName(**{**dict(row), "kept": bool(row["kept"])}) for row in rows]


# Reads which versions met each other in the episodes of a task, and their rewards. Standard library only.
#
# There is a row for each pair of versions that spoke in one episode, in training or in an evaluation. A version's
# reward in an episode is the mean of its agents' rewards. An agent that had no turn is not stored, so only episodes
# count in which both spoke. A version's episodes against itself are left out.

_SPOKEN = """
SELECT coalesce(g.play, g.id) AS play, j.member, j.agent, avg(j.reward) AS reward,
       CASE j.speaker WHEN '' THEN p.name ELSE j.speaker END AS who,
       CASE j.speaker WHEN '' THEN g.version ELSE coalesce(json_extract(j.spans, '$[0][2]'), 0) END AS version
FROM policies p JOIN groups g ON g.policy = p.id JOIN trajectories j ON j."group" = g.id
WHERE p.task = ? AND j.status = 'ok' GROUP BY j."group", j.member, j.agent
"""
_MET = f"""
WITH spoken AS ({_SPOKEN}), sides AS MATERIALIZED (
    SELECT play, member, who, version, avg(reward) AS reward FROM spoken GROUP BY play, member, who, version)
SELECT a.who, a.version, b.who AS against, b.version AS against_version,
       count(*) AS games, sum(a.reward) AS total, sum(a.reward * a.reward) AS squares
FROM sides a JOIN sides b ON b.play = a.play AND b.member = a.member
WHERE a.reward IS NOT NULL AND (a.who, a.version) != (b.who, b.version) GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
"""


@dataclass(frozen=True)
class Matchup:
    """The rewards of one version in the episodes in which another one spoke, too."""

    who: str
    """A policy's name, or the words that mean a version."""
    version: int
    """Its number among that policy's versions."""
    against: str
    against_version: int
    games: int
    total: float
    """Sum of its rewards."""
    squares: float
    """Sum of the squares of its rewards."""


def matchups(reader: Reader, task: int) -> list[Matchup]:
    """All pairs of a task, in both orders. It takes seconds for a million trajectories: call it in a thread."""
    return [Matchup(**dict(row)) for row in reader.all(_MET, task)]


# Reads what each prompt of an evaluation was worth, for comparisons by prompt. Standard library only.

_SCORES = f"""
WITH played AS (SELECT id, instance, rewards FROM groups
    WHERE policy = {POLICY} AND split = ? AND suite = ? AND step = ? AND environment_version = ?),
agents AS (
    SELECT instance, m.key AS member, a.key AS agent, a.value AS reward
    FROM played, json_each(played.rewards) m, json_each(m.value) a
    UNION ALL
    SELECT p.instance, j.member, j.agent, avg(j.reward) AS reward FROM played p JOIN trajectories j ON j."group" = p.id
    WHERE p.rewards IS NULL AND j.status = 'ok' AND j.speaker = '' AND j.reward IS NOT NULL
    GROUP BY p.instance, j.member, j.agent),
episodes AS (SELECT instance, member, avg(reward) AS reward FROM agents GROUP BY instance, member)
SELECT instance, avg(reward) AS score FROM episodes GROUP BY instance ORDER BY instance
"""


def prompt_scores(reader: Reader, task: int, evaluation: EvalRow, policy: str | None = None) -> dict[int, float]:
    """The mean reward of the episodes of each instance, by instance; those without a reward are left out.

    ``evaluation`` is one of the policy's, by default of the task's first.
    """
    where = evaluation.split, evaluation.suite, evaluation.step, evaluation.environment_version
    rows = reader.all(_SCORES, task, policy, *where)
    return {row["instance"]: row["score"] for row in rows}
