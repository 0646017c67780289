"""Reads the policies of a task with their progress; and SQL by which other queries choose a policy or a play.

Standard library only.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..score_basis import BASIS, ScoreBasis, basis_of
from .step_sums import StepSums

POLICY = "(SELECT id FROM policies WHERE task = ? AND name = coalesce(?, name) ORDER BY id LIMIT 1)"
"""SQL for a policy's id, by default that of the task's first. Its parameters: the task, and a policy's name or None."""
BEHIND = "(SELECT id FROM policies WHERE task = ? AND name = coalesce(?, name) ORDER BY step, id LIMIT 1)"
"""As ``POLICY``, but by default the policy that has made the fewest steps: the task ends when that one does."""
PLAY = """(SELECT o.id FROM groups g JOIN policies p ON p.id = g.policy JOIN policies q ON q.task = p.task
JOIN groups o ON o.policy = q.id AND o.split = g.split AND o.number = g.number
AND coalesce(o.play, o.id) = coalesce(g.play, g.id) WHERE g.id = ?)"""
"""SQL for the ids of all groups of one play. Its parameter: the id of one of them."""

_NEWEST = "FROM evals WHERE policy = p.id AND suite = '' AND split = p.split ORDER BY id DESC LIMIT 1"
SCORES = f"""(SELECT score {_NEWEST}) AS score,
       (SELECT max(score) FROM evals WHERE policy = p.id AND suite = '' AND split = p.split
           AND series = (SELECT series {_NEWEST})) AS best,
       (SELECT floor {_NEWEST}) AS floor,
       (SELECT {BASIS} {_NEWEST}) AS basis"""
"""SQL for the newest held-out score of a policy ``p``, the best of the same series, their baseline, and what the score
rests on."""


_TRAINED = f"""
SELECT p.id, p.name, p.step,
       (SELECT value FROM metrics WHERE policy = p.id AND step = p.step AND name = 'reward') AS reward,
       (SELECT value FROM metrics WHERE policy = p.id AND step = p.step AND name = 'staleness') AS staleness,
       {SCORES},
       (SELECT name FROM versions WHERE policy = p.id AND state != 'void' ORDER BY number DESC, id DESC LIMIT 1)
           AS adapter_version
FROM policies p WHERE p.task = ?
"""


@dataclass(frozen=True)
class PolicyRow:
    """One policy of a task that has several."""

    name: str
    agents: tuple[str, ...]
    """The agents that it acts as. Hostile text: a plugin named them."""
    frozen: str = ""
    """The version of a frozen policy, as written in the task file; else empty."""
    pool: str = ""
    """For an opponent pool, the policy whose earlier versions play; else empty."""
    step: int = 0
    reward: float | None = None
    """Mean training reward of the newest step."""
    score: float | None = None
    """Newest held-out score."""
    best: float | None = None
    """Best held-out score of the newest evaluation series."""
    floor: float | None = None
    """Score of the best constant answer on the held-out prompts, where it is known."""
    adapter_version: str = ""
    """Name of the newest committed version, or empty."""
    staleness: float | None = None
    """Mean staleness in versions of the tokens of the newest step."""
    tokens: int = 0
    """Tokens trained on so far."""
    measured: bool = False
    """Whether it is a version that an evaluation measures; its step is 1 once it has."""
    basis: ScoreBasis | None = None
    """What the newest held-out score rests on; with a basis and no score, too many episodes failed."""

    @property
    def trained(self) -> bool:
        """Whether it has scores of its own: it is trained, or measured."""
        return not self.frozen and not self.pool


class PolicyRows:
    """Reads the policies of tasks. ``query`` gives the rows of one short query."""

    def __init__(self, query: Callable[..., list[sqlite3.Row]], sums: StepSums) -> None:
        self._query = query
        self._sums = sums

    def of(
        self, task: int, policies: str | None, agents: str | None, versions: str | None = None
    ) -> tuple[PolicyRow, ...]:
        """The policies of a task, in the order of its file; empty where it has only one; an evaluation has versions.

        ``policies``, ``agents`` and ``versions`` are what the task file has under these names, as JSON.
        """
        if measured := json.loads(versions or "[]"):
            known = {row["name"]: self._progress(row) for row in self._query(_TRAINED, task)}
            return tuple(PolicyRow(words, (), measured=True, **known.get(words, {})) for words in measured)
        named: dict[str, dict[str, Any]] = json.loads(policies or "{}")
        if not named:
            return ()
        policy_of: dict[str, str] = json.loads(agents or "{}")
        trained = {row["name"]: self._progress(row) for row in self._query(_TRAINED, task)}
        return tuple(
            PolicyRow(
                name,
                tuple(agent for agent, policy in policy_of.items() if policy == name),
                str(said.get("frozen", "")),
                str(said.get("pool", "")),
                **trained.get(name, {}),
            )
            for name, said in named.items()
        )

    def _progress(self, row: sqlite3.Row) -> dict[str, Any]:
        values = {**dict(row), "adapter_version": row["adapter_version"] or ""}
        values["tokens"] = self._sums.of(values.pop("id"), row["step"]).tokens
        values["basis"] = basis_of(row["basis"])
        del values["name"]
        return values
