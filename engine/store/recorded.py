"""Reads for replay: groups as they were played, with all that was said in them. Standard library only.

Rows of the store flow in, frozen groups flow out. Tokens are not read: the turns are what was said, to the letter, and
they are kept where tokens were given up for room.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from .reader import Reader
from .rows import Turn

_GROUPS = """
SELECT g.id, g.number, g.instance, g.version, g.environment_version, g.step
FROM groups g JOIN policies p ON p.id = g.policy WHERE p.task = ? AND g.split = ?
ORDER BY CASE g.split WHEN 'train' THEN g.number ELSE g.id END DESC LIMIT ?
"""
_TRAJECTORIES = """
SELECT member, agent, status, reward, cut, spans, turns, parts, failure FROM trajectories
WHERE "group" = ? AND status != 'cancelled' ORDER BY member, id
"""


@dataclass(frozen=True)
class RecordedAgent:
    """One agent's conversation, over all its trajectories."""

    turns: tuple[Turn, ...]
    """What it was told and what it said; a thought is a turn of its own before its answer."""
    replies: tuple[int, ...]
    """Tokens of each of its replies, in order."""
    reward: float | None
    cut: bool
    """Whether the length limit ended what it said last."""


@dataclass(frozen=True)
class RecordedEpisode:
    """One episode. Cancelled ones are not here."""

    member: int
    status: str
    agents: dict[str, RecordedAgent] = field(default_factory=dict)
    """Those that were asked."""
    parts: dict[str, float] = field(default_factory=dict)
    failure: str = ""


@dataclass(frozen=True)
class RecordedGroup:
    """The episodes of one instance that were played together; of an evaluation, one."""

    number: int
    instance: int
    version: int
    """Of the policy."""
    environment_version: str
    step: int | None
    """The step that consumed it or, of an evaluation, that it measured; None while it waits."""
    episodes: tuple[RecordedEpisode, ...]


class Recordings(Reader):
    """A read-only view of one home's database, as ``Reader``."""

    def __enter__(self) -> Self:
        return self

    def groups(self, task: int, split: str, last: int) -> list[RecordedGroup]:
        """The ``last`` groups of a task's split, train or eval, in the order of training or of evaluation."""
        rows = self.all(_GROUPS, task, split, last)
        return [_group(row, self.all(_TRAJECTORIES, row["id"])) for row in reversed(rows)]


def _group(group: sqlite3.Row, rows: Sequence[sqlite3.Row]) -> RecordedGroup:
    members: dict[int, list[sqlite3.Row]] = {}
    for row in rows:
        members.setdefault(row["member"], []).append(row)
    return RecordedGroup(
        number=group["number"],
        instance=group["instance"],
        version=group["version"],
        environment_version=group["environment_version"],
        step=group["step"],
        episodes=tuple(_episode(member, own) for member, own in members.items()),
    )


def _episode(member: int, rows: Sequence[sqlite3.Row]) -> RecordedEpisode:
    agents: dict[str, list[sqlite3.Row]] = {}
    for row in rows:
        if row["agent"]:  # else it failed before anybody was asked
            agents.setdefault(row["agent"], []).append(row)
    failure = json.loads(rows[0]["failure"]) if rows[0]["failure"] else {}
    return RecordedEpisode(
        member=member,
        status=rows[0]["status"],
        agents={name: _agent(own) for name, own in agents.items()},
        parts=json.loads(rows[0]["parts"] or "{}"),
        failure=str(failure.get("message", "")),
    )


def _agent(rows: Sequence[sqlite3.Row]) -> RecordedAgent:
    return RecordedAgent(
        turns=tuple(Turn(**turn) for row in rows for turn in json.loads(row["turns"] or "[]")),
        replies=tuple(stop - start for row in rows for start, stop, _ in json.loads(row["spans"] or "[]")),
        reward=rows[-1]["reward"],
        cut=bool(rows[-1]["cut"]),
    )
