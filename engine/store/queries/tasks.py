"""Reads of how far tasks came, what earlier ones took, and what a home counted in all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..shown_state import shown_state
from .policies import POLICY
from .reader import Reader

# How far a policy's first step is: of the episodes that it needs, how many are there. Standard library only.

_COUNTED = f"""
WITH own AS (
    SELECT p.id, p.name, p.task, p.step,
           coalesce((SELECT json_extract(value, '$.groups_per_step') FROM json_each(t.config, '$.policies')
                     WHERE key = p.name),
                    json_extract(t.config, '$.train.groups_per_step')) AS groups,
           json_extract(t.config, '$.train.group_size') AS size
    FROM policies p JOIN tasks t ON t.id = p.task WHERE p.id = {POLICY} AND t.kind = 'train'
), there AS (
    SELECT number FROM groups, own
    WHERE policy = own.id AND split = 'train' AND state = 'complete' AND number < own.groups
)
SELECT step, groups, size, (SELECT count(*) FROM there) AS complete,
       (SELECT count(DISTINCT m.play || '/' || m.member) FROM open_plays o JOIN open_trajectories m ON m.play = o.id
        WHERE o.task = own.task AND o.number < own.groups AND o.number NOT IN (SELECT number FROM there)) AS open
FROM own
"""


@dataclass(frozen=True)
class FirstStep:
    """What a policy that has made no step yet is waiting for."""

    episodes: int
    """That have ended well, of its first groups."""
    wanted: int
    """That the step needs."""


def first_step(reader: Reader, task: int, policy: str | None = None) -> FirstStep | None:
    """Of a task's policy, by default its first; None once it has made a step, and of evaluations."""
    for row in reader.all(_COUNTED, task, policy):
        if row["step"] == 0 and row["groups"] and row["size"]:
            wanted = row["groups"] * row["size"]
            return FirstStep(min(wanted, row["complete"] * row["size"] + row["open"]), wanted)
    return None


# Reads for the report of a home: how far its policies came in a span of time. Standard library only.

_SCORE = (
    "(SELECT score FROM evals WHERE policy = p.id AND suite = '' AND split = 'eval' AND score IS NOT NULL"
    " AND series = (SELECT series FROM evals WHERE policy = p.id AND suite = '' AND split = 'eval'"
    "  ORDER BY id DESC LIMIT 1) {which} LIMIT 1)"
)
_REWARD = "(SELECT value FROM metrics WHERE policy = p.id AND name = 'reward' AND step = s.{which})"
_PROGRESS = f"""
SELECT p.task, p.name AS policy, s.steps,
       {_REWARD.format(which="first")} AS reward_before, {_REWARD.format(which="last")} AS reward,
       coalesce({_SCORE.format(which="AND created < ?1 ORDER BY id DESC")},
                {_SCORE.format(which="ORDER BY id")}) AS score_before,
       {_SCORE.format(which="ORDER BY id DESC")} AS score
FROM (SELECT policy, count(*) AS steps, min(number) AS first, max(number) AS last FROM steps WHERE created >= ?1
      GROUP BY policy) s
JOIN policies p ON p.id = s.policy ORDER BY p.id
"""


@dataclass(frozen=True)
class ProgressRow:
    """How far a policy has come since some moment."""

    task: int
    policy: str
    steps: int
    """Those that were committed since then."""
    reward_before: float | None
    """Of the first of these steps."""
    reward: float | None
    """Of the last."""
    score_before: float | None
    """The last held-out score before that moment, else the first since; of the newest series."""
    score: float | None
    """The newest."""


def progress(reader: Reader, since: float) -> list[ProgressRow]:
    """Policies with steps that were committed since a moment (seconds since 1970), oldest first."""
    rows = reader.all(_PROGRESS, since)
    return [ProgressRow(**dict(row)) for row in rows]


# Reads for estimates: what earlier tasks on an environment took. Standard library only.

TASKS = 20
"""Tasks that are read, the newest."""
STEPS = 500
"""Steps of each task that are read, the last: they are enough to tell its speed; a long run has a hundred thousand."""
GROUPS = 8
"""Groups of each task whose trajectories are measured, the newest."""
LEAST_STEPS = 3
"""A task with fewer steps is left out: its first step waits for the first evaluation."""

_RUNS = """
SELECT t.id AS task, coalesce(json_extract(t.config, '$.policies."' || p.name || '".groups_per_step'),
                              json_extract(t.config, '$.train.groups_per_step')) AS groups_per_step,
       json_extract(t.config, '$.train.group_size') AS group_size,
       json_extract(t.config, '$.sampling.max_tokens') AS max_tokens,
       count(s.number) AS steps, total(s.seconds) AS seconds, p.step AS made, p.id AS policy,
       (SELECT total(m.value) FROM metrics m
        WHERE m.policy = p.id AND m.name = 'tokens' AND m.step > p.step - ?) AS tokens,
       (SELECT total(seconds) FROM usage u WHERE u.task = t.id AND u.stage = 'rollout') AS rollout,
       (SELECT total(seconds) FROM usage u WHERE u.task = t.id AND u.stage = 'training') AS training
FROM tasks t JOIN policies p ON p.id = (SELECT min(id) FROM policies WHERE task = t.id)
JOIN steps s ON s.policy = p.id AND s.number > p.step - ?
WHERE t.id IN (SELECT id FROM tasks WHERE environment IN ({names}) AND base IN (?, '') AND started IS NOT NULL
               ORDER BY id DESC LIMIT ?)
GROUP BY t.id HAVING count(s.number) >= ? ORDER BY t.id DESC
"""
_SIZES = """
SELECT avg(coalesce(j.length, length(j.tokens) / 4)) AS tokens,
       avg(length(CAST(j.turns AS BLOB)) + length(coalesce(j.parts, '')) + length(coalesce(j.metrics, ''))
           + length(coalesce(j.spans, ''))) AS text
FROM trajectories j WHERE j."group" IN
    (SELECT id FROM groups WHERE policy = ? AND split = 'train' ORDER BY number DESC LIMIT ?)
"""


@dataclass(frozen=True)
class PastRun:
    """What an earlier task took, for estimates."""

    task: int
    groups_per_step: int
    group_size: int
    max_tokens: int
    """Tokens of a turn that its task file allowed."""
    steps: int
    """Steps that were read."""
    seconds: float
    """Wall time of these steps, beside whatever else ran."""
    tokens: int
    """Sampled in these steps."""
    rollout: float
    """Seconds of the rollout worker for a step, evaluations included."""
    training: float
    """Seconds of the training worker for a step."""
    trajectory_tokens: float
    """Tokens of a trajectory on average, its prompt included."""
    trajectory_text: float
    """Bytes of a trajectory's text, reward parts and metrics on average."""

    @property
    def episodes(self) -> int:
        """Episodes of a step."""
        return self.groups_per_step * self.group_size


def past_runs(reader: Reader, names: Sequence[str], base: str) -> list[PastRun]:
    """Tasks that trained on an environment, by any of its names, and on the base of that fingerprint; newest first."""
    sql = _RUNS.format(names=", ".join("?" * len(names)))
    rows = reader.all(sql, STEPS, STEPS, *names, base, TASKS, LEAST_STEPS)
    runs = []
    for row in rows:
        (size,) = reader.all(_SIZES, row["policy"], GROUPS)
        runs.append(
            PastRun(
                task=row["task"],
                groups_per_step=row["groups_per_step"] or 1,
                group_size=row["group_size"] or 1,
                max_tokens=row["max_tokens"] or 0,
                steps=row["steps"],
                seconds=row["seconds"],
                tokens=int(row["tokens"] or 0),
                rollout=(row["rollout"] or 0.0) / row["made"],
                training=(row["training"] or 0.0) / row["made"],
                trajectory_tokens=size["tokens"] or 0.0,
                trajectory_text=size["text"] or 0.0,
            )
        )
    return runs


# What a home has counted in all, for ``/metrics``: tasks, tokens, steps, versions, and what keys have used.
#
# Standard library only.

_USED = "FROM usage u JOIN tasks t ON t.id = u.task GROUP BY t.tenant, u.stage"
_TOTALS = f"""
SELECT 'tasks' AS what, {shown_state("t")} AS of, '' AS part, count(*) AS value FROM tasks t GROUP BY of
UNION ALL SELECT 'tokens', t.tenant, u.stage, sum(u.tokens) {_USED}
UNION ALL SELECT 'seconds', t.tenant, u.stage, total(u.seconds) {_USED}
UNION ALL SELECT 'steps', t.tenant, '', sum(p.step) FROM tasks t JOIN policies p ON p.task = t.id
    WHERE t.kind = 'train' GROUP BY t.tenant
UNION ALL SELECT 'versions', state, '', count(*) FROM versions GROUP BY state
UNION ALL SELECT 'keys', CASE WHEN revoked IS NULL THEN 'valid' ELSE 'revoked' END AS state, '', count(*)
    FROM api_keys GROUP BY state
UNION ALL SELECT 'requests', tenant, '', sum(requests) FROM api_keys GROUP BY tenant
UNION ALL SELECT 'api tokens', tenant, 'in', sum(tokens_in) FROM api_keys GROUP BY tenant
UNION ALL SELECT 'api tokens', tenant, 'out', sum(tokens_out) FROM api_keys GROUP BY tenant
"""


@dataclass(frozen=True)
class Total:
    """One number."""

    what: str
    """tasks, tokens, seconds, steps, versions, keys, requests or api tokens"""
    of: str
    """A state of tasks, versions or keys; else a tenant. Hostile text."""
    part: str
    """The stage of tokens and seconds; ``in`` or ``out`` for the API's tokens; else empty."""
    value: float


def totals(reader: Reader) -> list[Total]:
    """All of them, by one query."""
    return [Total(*row) for row in reader.all(_TOTALS)]
