"""Times of episodes, steps and stages, for the simulation.

Standard library only. Rows come in storage order: equal homes give equal answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .machine import StageSample
from .reader import Reader

WINDOW = 30.0
"""Seconds: samples of one look at the workers are shorter. Older ones are merged to a minute."""
_TIMED = """
SELECT t.config, g.split, g.component, g.suite, coalesce(g.play, g.id) AS play,
       j.member, j.agent, j.spans, j.reward, j.timing
FROM groups g JOIN policies p ON p.id = g.policy JOIN tasks t ON t.id = p.task JOIN trajectories j ON j."group" = g.id
WHERE j.status = 'ok' AND j.timing IS NOT NULL OR j.status = 'ok' AND g.split = 'train'
ORDER BY coalesce(g.play, g.id), j.member, g.id, j.id
"""
_EPISODES = """
SELECT coalesce(g.play, g.id) AS play, j.member, j.timing
FROM groups g JOIN policies p ON p.id = g.policy JOIN trajectories j ON j."group" = g.id
WHERE g.split = 'train' AND j.timing IS NOT NULL AND p.task > ? ORDER BY g.id, j.member
"""
_STEPS = """
WITH passed AS (
    SELECT g.policy, g.step, max(abs(j.advantage)) > 0 AS signal,
           sum(coalesce(j.length, length(j.tokens) / 4)) AS tokens
    FROM groups g JOIN trajectories j ON j."group" = g.id
    WHERE g.split = 'train' AND g.state = 'consumed' AND j.speaker = '' GROUP BY g.id
), summed AS (
    SELECT policy, step, total(signal) AS groups, total(tokens * signal) AS tokens FROM passed GROUP BY policy, step
)
SELECT coalesce(x.groups, 0) AS groups, coalesce(x.tokens, 0) AS tokens,
       (SELECT value FROM metrics m WHERE m.policy = s.policy AND m.step = s.number AND m.name = 'training_seconds')
           AS training,
       (SELECT value FROM metrics m WHERE m.policy = s.policy AND m.step = s.number AND m.name = 'update_seconds')
           AS "update",
       (SELECT value FROM metrics m WHERE m.policy = s.policy AND m.step = s.number AND m.name = 'trainer_calls')
           AS calls,
       (SELECT value FROM metrics m WHERE m.policy = s.policy AND m.step = s.number AND m.name = 'publish_seconds')
           AS publish
FROM steps s LEFT JOIN summed x ON x.policy = s.policy AND x.step = s.number ORDER BY s.id
"""
_HISTORIES = """
SELECT p.task, p.step, json_extract(t.config, '$.train.groups_per_step') AS batch,
       json_extract(t.config, '$.train.max_staleness') AS bound,
       (SELECT count(*) FROM groups g WHERE g.policy = p.id AND g.split = 'train' AND g.state = 'consumed') AS consumed,
       (SELECT count(DISTINCT number) FROM groups g
        WHERE g.policy = p.id AND g.split = 'train' AND g.state = 'consumed'
            AND (json_extract(t.config, '$.train.order') = 'arrival'
                 OR g.step = g.number / json_extract(t.config, '$.train.groups_per_step') + 1)) AS in_order,
       (SELECT count(*) FROM versions v WHERE v.policy = p.id AND v.state != 'void') AS versions,
       (SELECT count(*) FROM steps s WHERE s.policy = p.id) AS steps
FROM policies p JOIN tasks t ON t.id = p.task WHERE t.kind = 'train' ORDER BY p.id
"""


@dataclass(frozen=True)
class TimedTrajectory:
    """A trajectory of an episode that ended well."""

    config: str
    split: str
    component: str
    suite: str
    play: int
    member: int
    agent: str
    spans: list[list[Any]]
    reward: float | None
    timing: list[Any] | None
    """[[[agent, asked, answered], …], over, ended], seconds since the episode began; only in its first trajectory."""


@dataclass(frozen=True)
class StepTimes:
    """Seconds; None: not recorded."""

    groups: int
    """With different rewards: the others need no pass."""
    tokens: int
    training: float | None
    update: float | None
    calls: float | None
    """Of a trainer; of a shared call, this policy's part."""
    publish: float | None


@dataclass(frozen=True)
class PolicyHistory:
    """A history's completeness."""

    task: int
    step: int
    batch: int
    bound: int
    consumed: int
    in_order: int
    """Different numbers, each consumed by the step that is due."""
    versions: int
    steps: int

    @property
    def gaps(self) -> int:
        wanted = self.step * self.batch
        lacking = abs(self.consumed - wanted) + wanted - self.in_order
        return lacking + abs(self.steps - self.step) + (abs(self.versions - self.step - 1) if self.versions else 0)


def timed_trajectories(reader: Reader) -> Iterator[TimedTrajectory]:
    """Episode by episode."""
    for row in reader.all(_TIMED):
        told = {**dict(row), "spans": json.loads(row["spans"])}
        yield TimedTrajectory(**told | {"timing": json.loads(row["timing"]) if row["timing"] else None})


def reply_times(reader: Reader, after: int = 0) -> Iterator[tuple[tuple[int, int], list[tuple[str, float, float]]]]:
    """(play, member), (agent, asked, answered): seconds, of training episodes' turns.

    ``after``: a task number.
    """
    for row in reader.all(_EPISODES, after):
        yield (row["play"], row["member"]), json.loads(row["timing"])[0]


def step_times(reader: Reader) -> list[StepTimes]:
    """In commit order."""
    return reader.rows(StepTimes, _STEPS)


def state_sizes(reader: Reader) -> list[int]:
    """Bytes, of all trained versions, sorted."""
    return [row[0] for row in reader.all("SELECT size FROM versions WHERE number > 0 AND resumable = 1 ORDER BY size")]


def outcome_counts(reader: Reader) -> list[tuple[str, str, int, int]]:
    """(environment, status, bucket of seconds, episodes)"""
    sql = "SELECT environment, status, bucket, sum(episodes) FROM outcomes GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"
    return [tuple(row) for row in reader.all(sql)]


def sampler_windows(reader: Reader) -> list[StageSample]:
    """Without idle ones."""
    sql = (
        "SELECT stage, device, begun, wall, busy, waiting, active, ended, tokens, read, passes FROM stages"
        " WHERE stage = 'rollout' AND busy > 0 AND passes > 0 AND wall < ? ORDER BY id"
    )
    return reader.rows(StageSample, sql, WINDOW)


def tenant_seconds(reader: Reader, after: int = 0) -> dict[tuple[str, str], float]:
    """By stage and tenant, of tasks above ``after``."""
    return {
        (row["stage"], row["tenant"]): row["seconds"]
        for row in reader.all(
            (
                "SELECT u.stage, t.tenant, total(u.seconds) AS seconds FROM usage u JOIN tasks t ON t.id = u.task"
                " WHERE t.id > ? AND u.stage IN ('rollout', 'training') GROUP BY 1, 2 ORDER BY 1, 2"
            ),
            after,
        )
    }


def staleness_counts(reader: Reader, after: int = 0) -> dict[int, int]:
    """By staleness in versions, of tasks above ``after``."""
    return {
        row["age"]: row["count"]
        for row in reader.all(
            (
                "SELECT g.step - 1 - g.version AS age, count(*) AS count FROM groups g"
                " JOIN policies p ON p.id = g.policy"
                " WHERE g.split = 'train' AND g.state = 'consumed' AND p.task > ? GROUP BY 1 ORDER BY 1"
            ),
            after,
        )
    }


def policy_histories(reader: Reader, after: int = 0) -> list[PolicyHistory]:
    """Of all trained policies of tasks above ``after``."""
    return [PolicyHistory(**dict(row)) for row in reader.all(_HISTORIES) if row["task"] > after]


def newest_engine(reader: Reader) -> tuple[str, str]:
    """Its base and sampler; empty without one."""
    rows = reader.all("SELECT base, sampler FROM engines ORDER BY incarnation DESC LIMIT 1")
    return tuple(rows[0]) if rows else ("", "")
