"""Reads for the report of a home: how far its policies came in a span of time. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass

from .reader import Reader

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
