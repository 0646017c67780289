"""Reads which versions met each other in the episodes of a task, and their rewards. Standard library only.

There is a row for each pair of versions that spoke in one episode, in training or in an evaluation. A version's reward
in an episode is the mean of its agents' rewards. An agent that had no turn is not stored, so only episodes count in
which both spoke. A version's episodes against itself are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from .reader import Reader

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
