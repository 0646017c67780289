"""Reads the policies of a task with their progress and the sums of their steps. Standard library only."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass
from typing import Any

from ..score_basis import BASIS, ScoreBasis, basis_of

# What the steps of policies sum up to: tokens, and episodes that were lost. Standard library only.
#
# Screens ask every second, and a long run has thousands of steps. So a sum is kept and later steps are added, unless
# the step that it goes up to has been voided since.

_METRICS = ("tokens", "lost", "errors")
_SQL = f"""SELECT {", ".join(f"total(value) FILTER (WHERE name = '{name}')" for name in _METRICS)} FROM metrics
WHERE policy = ? AND name IN ('{"', '".join(_METRICS)}') AND step > ? AND step <= ?"""


@dataclass(frozen=True)
class Sums:
    """Sums over a policy's steps."""

    tokens: int = 0
    """Tokens that it was trained on."""
    lost: int = 0
    """Episodes that failed each time that they were played."""
    kept_lost: int = 0
    """Those of them that are members of a group all the same."""

    def and_more(self, more: Iterable[float]) -> Sums:
        """With the sums of later steps."""
        return Sums(*(int(before + value) for before, value in zip(astuple(self), more, strict=True)))


@dataclass(frozen=True)
class _Known:
    number: int
    """The last step that is in the sums."""
    created: float
    """When that step was made: after a rollback, another step gets its number."""
    sums: Sums


class StepSums:
    """Keeps sums for each policy. ``query`` runs a query and returns its rows."""

    def __init__(self, query: Callable[..., list[sqlite3.Row]]) -> None:
        self._query = query
        self._known: dict[int, _Known] = {}

    def of(self, policy: int | None, step: int) -> Sums:
        """The sums over a policy's steps up to ``step``."""
        if policy is None or not step:
            return Sums()
        known = self._known.get(policy)
        if known is not None and (known.number > step or self._created(policy, known.number) != known.created):
            known = None
        after, before = (known.number, known.sums) if known else (0, Sums())
        if after == step:
            return before
        sums, created = before.and_more(self._query(_SQL, policy, after, step)[0]), self._created(policy, step)
        if created is not None:
            self._known[policy] = _Known(step, created, sums)
        return sums

    def _created(self, policy: int, step: int) -> float | None:
        rows = self._query("SELECT created FROM steps WHERE policy = ? AND number = ?", policy, step)
        return rows[0][0] if rows else None


# Reads the policies of a task with their progress; and SQL by which other queries choose a policy or a play.
#
# Standard library only.

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
