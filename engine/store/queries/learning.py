"""Reads of how tasks learn. Standard library only."""

from __future__ import annotations

import json
import math
import sqlite3
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..rows import BASIS, FINISHED, POLICY, EvalRow, VersionRow, shown_state
from .reader import Reader

# Runs may have 100,000 steps: only new ones are read.

_LAST = f"SELECT number, created FROM steps WHERE policy = {POLICY} ORDER BY number DESC LIMIT 1"
_SAME = f"SELECT 1 FROM steps WHERE policy = {POLICY} AND number = ? AND created = ?"
_VALUES = f"SELECT step, value FROM metrics WHERE policy = {POLICY} AND name = ? AND step > ? ORDER BY step"
_ENVIRONMENTS = f"""
SELECT number, environment_version FROM (
    SELECT number, environment_version, lag(environment_version, 1, ?) OVER (ORDER BY number) AS before
    FROM steps WHERE policy = {POLICY} AND environment_version != '' AND number > ?)
WHERE environment_version != before ORDER BY number
"""


@dataclass(frozen=True)
class Track:
    """One metric by step."""

    steps: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def at(self, step: int) -> float | None:
        place = self.place(step)
        return self.values[place] if place is not None and self.steps[place] == step else None

    def place(self, step: int) -> int | None:
        if not self.steps:
            return None
        after = bisect_left(self.steps, step)
        near = [place for place in (after - 1, after) if 0 <= place < len(self.steps)]
        return min(near, key=lambda place: abs(self.steps[place] - step))


@dataclass(frozen=True)
class Change:
    """A change of the environment version."""

    step: int
    environment_version: str


@dataclass(frozen=True)
class History:
    """Metrics and environment versions up to the step ``last``."""

    tracks: Mapping[str, Track] = field(default_factory=dict)
    environments: tuple[Change, ...] = ()
    """The first is that at the beginning of training."""
    last: tuple[int, float] = (0, 0.0)
    """Newest step, commit time."""

    def environment_at(self, step: int) -> str:
        begun = [change.environment_version for change in self.environments if change.step <= step]
        return begun[-1] if begun else ""


def history(
    reader: Reader, task: int, names: Iterable[str], before: History | None = None, policy: str | None = None
) -> History:
    """``before`` is not read again, unless its last step was voided."""
    known = before if before and reader.all(_SAME, task, policy, *before.last) else History()
    last = next(((row["number"], row["created"]) for row in reader.all(_LAST, task, policy)), (0, 0.0))
    version = known.environments[-1].environment_version if known.environments else ""
    changes = (Change(*row) for row in reader.all(_ENVIRONMENTS, version, task, policy, known.last[0]))
    tracks = {name: _longer(reader, task, policy, name, known.tracks.get(name, Track())) for name in names}
    return History(tracks, (*known.environments, *changes), last)


def _longer(reader: Reader, task: int, policy: str | None, name: str, track: Track) -> Track:
    rows = reader.all(_VALUES, task, policy, name, track.steps[-1] if track.steps else 0)
    if not rows:
        return track
    steps, values = track.steps[:], track.values[:]
    steps.extend(row[0] for row in rows)
    values.extend(map(_number, (row[1] for row in rows)))
    return Track(steps, values)


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def evals_made(reader: Reader, task: int, policy: str | None = None) -> tuple[int, int]:
    """Equal values mean unchanged evaluations."""
    (row,) = reader.all(
        f"SELECT count(*) AS count, coalesce(max(id), 0) AS id FROM evals WHERE policy = {POLICY}", task, policy
    )
    return row["count"], row["id"]


def metric_samples(reader: Reader, task: int, most: int = 64, policy: str | None = None) -> dict[str, Track]:
    """At about ``most`` evenly spread steps, and the newest two.

    Steps are multiples of a power of two: most stay the same as the run grows.
    """
    last = next((row["number"] for row in reader.all(_LAST, task, policy)), 0)
    apart = 1
    while last // apart > most:
        apart *= 2
    steps = sorted({*range(apart, last + 1, apart), *range(max(1, last - 1), last + 1)})
    marks = ",".join("?" * len(steps))
    rows = reader.all(
        f"SELECT name, step, value FROM metrics WHERE policy = {POLICY} AND step IN ({marks}) ORDER BY step",
        task,
        policy,
        *steps,
    )
    found: dict[str, Track] = {}
    for row in rows:
        track = found.setdefault(row["name"], Track())
        track.steps.append(row["step"])
        track.values.append(_number(row["value"]))
    return found


def recent_means(reader: Reader, task: int, over: int = 10, policy: str | None = None) -> dict[str, float]:
    """Over the last ``over`` steps that recorded them."""
    newest = f"(SELECT max(number) FROM steps WHERE policy = {POLICY})"
    rows = reader.all(  # the plus sign keeps sqlite from an index that reads every step
        f"SELECT name, avg(value) AS mean FROM metrics WHERE policy = {POLICY} AND step > {newest} - ? GROUP BY +name",
        task,
        policy,
        task,
        policy,
        over,
    )
    return {row["name"]: row["mean"] for row in rows if row["mean"] is not None}


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
    """Progress to the first step, in episodes."""

    episodes: int
    wanted: int


def first_step(reader: Reader, task: int, policy: str | None = None) -> FirstStep | None:
    """None after the first step, and for evaluations."""
    for row in reader.all(_COUNTED, task, policy):
        if row["step"] == 0 and row["groups"] and row["size"]:
            wanted = row["groups"] * row["size"]
            return FirstStep(min(wanted, row["complete"] * row["size"] + row["open"]), wanted)
    return None


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
    """Progress since some moment."""

    task: int
    policy: str
    steps: int
    reward_before: float | None
    reward: float | None
    score_before: float | None
    """The last held-out score before, else the first since; of the newest series."""
    score: float | None


def progress(reader: Reader, since: float) -> list[ProgressRow]:
    """Policies with steps since a time (seconds since 1970), oldest first."""
    return reader.rows(ProgressRow, _PROGRESS, since)


TASKS = 20
STEPS = 500
"""Of each task; a long run has a hundred thousand."""
GROUPS = 8
LEAST_STEPS = 3
"""A first step waits for the first evaluation."""

_NEWEST = f"""FROM trajectories j WHERE j."group" IN
    (SELECT id FROM groups WHERE policy = p.id AND split = 'train' ORDER BY number DESC LIMIT {GROUPS})"""
_RUNS = f"""
SELECT t.id AS task, coalesce(json_extract(t.config, '$.policies."' || p.name || '".groups_per_step'),
                              json_extract(t.config, '$.train.groups_per_step'), 1) AS groups_per_step,
       coalesce(json_extract(t.config, '$.train.group_size'), 1) AS group_size,
       coalesce(json_extract(t.config, '$.sampling.max_tokens'), 0) AS max_tokens,
       count(s.number) AS steps, total(s.seconds) AS seconds,
       (SELECT CAST(total(m.value) AS INTEGER) FROM metrics m
        WHERE m.policy = p.id AND m.name = 'tokens' AND m.step > p.step - {STEPS}) AS tokens,
       (SELECT total(seconds) FROM usage u WHERE u.task = t.id AND u.stage = 'rollout') / p.step AS rollout,
       (SELECT total(seconds) FROM usage u WHERE u.task = t.id AND u.stage = 'training') / p.step AS training,
       coalesce((SELECT avg(coalesce(j.length, length(j.tokens) / 4)) {_NEWEST}), 0.0) AS trajectory_tokens,
       coalesce((SELECT avg(length(CAST(j.turns AS BLOB)) + length(coalesce(j.parts, ''))
           + length(coalesce(j.metrics, '')) + length(coalesce(j.spans, ''))) {_NEWEST}), 0.0) AS trajectory_text
FROM tasks t JOIN policies p ON p.id = (SELECT min(id) FROM policies WHERE task = t.id)
JOIN steps s ON s.policy = p.id AND s.number > p.step - {STEPS}
WHERE t.id IN (SELECT id FROM tasks WHERE environment IN (SELECT value FROM json_each(?)) AND base IN (?, '')
               AND started IS NOT NULL ORDER BY id DESC LIMIT {TASKS})
GROUP BY t.id HAVING count(s.number) >= {LEAST_STEPS} ORDER BY t.id DESC
"""


@dataclass(frozen=True)
class PastRun:
    """An earlier task's durations and sizes."""

    task: int
    groups_per_step: int
    group_size: int
    max_tokens: int
    steps: int
    seconds: float
    tokens: int
    rollout: float
    training: float
    trajectory_tokens: float
    trajectory_text: float

    @property
    def episodes(self) -> int:
        return self.groups_per_step * self.group_size


def past_runs(reader: Reader, names: Sequence[str], base: str) -> list[PastRun]:
    """Trained on an environment, by any of its names, and on that base; newest first."""
    return reader.rows(PastRun, _RUNS, json.dumps(list(names)), base)


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
    """One number for ``/metrics``."""

    what: str
    """tasks, tokens, seconds, steps, versions, keys, requests or api tokens"""
    of: str
    """A state, or a tenant. Hostile text."""
    part: str
    value: float


def totals(reader: Reader) -> list[Total]:
    """All, by one query."""
    return [Total(*row) for row in reader.all(_TOTALS)]


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
"""The plus sign keeps sqlite from all evaluations of the policy."""
_MARKS = f"""
SELECT v.policy, max(v.id), count(*), total(v.size), group_concat(v.label), {shown_state("t")}, t.steps,
       (SELECT id FROM evals WHERE policy = v.policy AND suite = '' AND split = 'eval' ORDER BY id DESC LIMIT 1)
FROM versions v JOIN policies p ON p.id = v.policy JOIN tasks t ON t.id = p.task
WHERE v.state = 'committed' GROUP BY v.policy
"""
_OWN = ("policy_id", "task_state", "environment", "steps")

KeptMarks = Mapping[int, tuple[object, ...]]
"""By policy; a mark changes with its kept versions."""


@dataclass(frozen=True)
class KeptVersion:
    """A version on the disk, and its task."""

    row: VersionRow
    policy_id: int
    task_state: str
    environment: str
    steps: int

    @property
    def label(self) -> str:
        return self.row.label.replace("last", "final" if self.task_state in FINISHED else "last")


def kept_marks(reader: Reader) -> KeptMarks:
    """Of all policies with a version on the disk."""
    return {row[0]: tuple(row) for row in reader.all(_MARKS)}


def kept_versions(reader: Reader, policies: Iterable[int]) -> list[KeptVersion]:
    """In no order."""
    wanted = ",".join(str(int(policy)) for policy in policies)
    return [_kept(reader, row) for row in reader.all(f"{_KEPT} AND v.policy IN ({wanted})")]


def _kept(reader: Reader, row: sqlite3.Row) -> KeptVersion:
    values = dict(row)
    own = {name: values.pop(name) for name in _OWN}
    return KeptVersion(reader.version(values), **own)


@dataclass(frozen=True)
class GivenName:
    """A tenant's name for a version."""

    tenant: str
    name: str
    task: int
    policy: str
    number: int
    version: str
    kept: bool


def given_names(reader: Reader) -> list[GivenName]:
    """By tenant and name."""
    rows = reader.all(
        "SELECT n.tenant, n.name, p.task, p.name AS policy, v.number, v.name AS version, v.state = 'committed' AS kept"
        " FROM adapter_names n JOIN versions v ON v.id = n.version JOIN policies p ON p.id = v.policy"
        " ORDER BY n.tenant, n.name"
    )
    return [GivenName(**{**dict(row), "kept": bool(row["kept"])}) for row in rows]


# A row for each pair of different versions in an episode. A version's reward is the mean of its agents'.

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
    """One version's rewards against another."""

    who: str
    version: int
    against: str
    against_version: int
    games: int
    total: float
    squares: float


def matchups(reader: Reader, task: int) -> list[Matchup]:
    """In both orders. Takes seconds for a million trajectories: call it in a thread."""
    return reader.rows(Matchup, _MET, task)


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
    """Mean reward by instance, without episodes that have none.

    ``evaluation``: of the policy, by default the task's first.
    """
    where = evaluation.split, evaluation.suite, evaluation.step, evaluation.environment_version
    return {row["instance"]: row["score"] for row in reader.all(_SCORES, task, policy, *where)}
