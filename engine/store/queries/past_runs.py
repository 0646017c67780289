"""Reads for estimates: what earlier tasks on an environment took. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .reader import Reader

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
