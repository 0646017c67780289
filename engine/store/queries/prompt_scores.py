"""Reads what each prompt of an evaluation was worth, for comparisons by prompt. Standard library only."""

from __future__ import annotations

from ..rows import EvalRow
from .policies import POLICY
from .reader import Reader

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
