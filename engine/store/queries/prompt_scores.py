"""Reads what each prompt of an evaluation was worth, for comparisons by prompt. Standard library only."""

from __future__ import annotations

from ..rows import EvalRow
from .policies import POLICY
from .reader import Reader

_SCORES = f"""
WITH agents AS (
    SELECT g.instance, j.member, j.agent, avg(j.reward) AS reward FROM groups g JOIN trajectories j ON j."group" = g.id
    WHERE g.policy = {POLICY} AND g.split = ? AND g.suite = ? AND g.step = ? AND g.environment_version = ?
        AND j.status = 'ok' AND j.speaker = '' AND j.reward IS NOT NULL
    GROUP BY g.instance, j.member, j.agent),
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
