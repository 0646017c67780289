"""Reads for replay: groups as they were played, with the text of all turns. Standard library only.

Tokens are not read: the text is exact, and it is kept where tokens have been removed to free disk space.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from ...rows import Turn
from ..reader import Reader

_PLAYS = """
SELECT json_group_array(g.id) AS groups, g.number, g.instance, g.environment_version, g.step, min(g.id)
FROM groups g JOIN policies p ON p.id = g.policy
WHERE p.task = ? AND g.split = ? AND CASE g.suite WHEN '' THEN g.component ELSE g.suite END = ?
GROUP BY coalesce(g.play, g.id)
ORDER BY CASE g.split WHEN 'train' THEN g.number ELSE coalesce(g.play, g.id) END DESC LIMIT ?
"""
_TRAJECTORIES = """
SELECT t.member, t.agent, t.status, t.reward, t.cut, t.spans, t.turns, t.parts, t.failure, g.step
FROM trajectories t JOIN groups g ON g.id = t."group"
WHERE t."group" IN (SELECT value FROM json_each(?)) AND t.status != 'cancelled' ORDER BY t.member, t.id
"""


@dataclass(frozen=True)
class RecordedAgent:
    """One agent's conversation, over all its trajectories."""

    turns: tuple[Turn, ...]
    """Its prompts and replies; thinking is a turn of its own before the answer."""
    replies: tuple[int, ...]
    """Length of each of its replies in tokens, in order."""
    reward: float | None
    cut: bool
    """Whether the length limit ended its last reply."""
    step: int | None = None
    """The step that consumed it, or that an evaluation measured; None while it waits. The conversation of a policy that
    is not trained on it has the step of one that is."""


@dataclass(frozen=True)
class RecordedEpisode:
    """One episode. Cancelled ones are not here."""

    member: int
    status: str
    agents: dict[str, RecordedAgent] = field(default_factory=dict)
    """By name, those that were asked for a reply."""
    parts: dict[str, float] = field(default_factory=dict)
    failure: str = ""


@dataclass(frozen=True)
class RecordedGroup:
    """The episodes of one play with all of their agents; an evaluation's has one episode."""

    number: int
    instance: int
    environment_version: str
    step: int | None
    """The step that consumed the group of its first policy; other policies' steps are with their agents."""
    episodes: tuple[RecordedEpisode, ...]


class Recordings(Reader):
    """A read-only view of one home's database, as ``Reader``."""

    def __enter__(self) -> Self:
        return self

    def groups(self, task: int, split: str, last: int, component: str = "") -> list[RecordedGroup]:
        """The ``last`` groups of a task's split, train or eval, in the order of training or of evaluation.

        Of a task with a mixture: those that were played on the ``component`` of this name.

        The groups of several policies from one play are one group here: its rewards depend on what all of them said.
        """
        rows = self.all(_PLAYS, task, split, component, last)
        return [_group(row, self.all(_TRAJECTORIES, row["groups"])) for row in reversed(rows)]


def _group(group: sqlite3.Row, rows: Sequence[sqlite3.Row]) -> RecordedGroup:
    members: dict[int, list[sqlite3.Row]] = {}
    for row in rows:
        members.setdefault(row["member"], []).append(row)
    return RecordedGroup(
        number=group["number"],
        instance=group["instance"],
        environment_version=group["environment_version"],
        step=group["step"],
        episodes=tuple(_episode(member, own) for member, own in members.items()),
    )


def _episode(member: int, rows: Sequence[sqlite3.Row]) -> RecordedEpisode:
    agents: dict[str, list[sqlite3.Row]] = {}
    for row in rows:
        if row["agent"]:  # else the episode failed before any agent was asked
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
        replies=tuple(stop - start for row in rows for start, stop, *_ in json.loads(row["spans"] or "[]")),
        reward=rows[-1]["reward"],
        cut=bool(rows[-1]["cut"]),
        step=rows[-1]["step"],
    )
