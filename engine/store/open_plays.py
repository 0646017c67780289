"""Members that have ended well of plays that are still open: they survive the engine, and leave with their play.

A play is open until every policy that is trained on it has its group. Its members wait here, with what all agents
said; only stored groups are trained on. Engine side.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from msgspec.json import decode, encode
from sqlite_utils import Database

from ..clock import wall_time
from ..environments import EpisodeOutcome
from ..faults import Point, reach
from ..trajectories import Episode, Span, Trajectory, Transcript, Transcripts
from .database import insert, insert_all, transaction
from .rows import FINISHED
from .trajectory_rows import NOTHING, said, transcript_of

Speaking = tuple[int, str]
"""The number and the checksum of a version that speaks in a play."""


@dataclass(frozen=True)
class OpenPlay:
    """A play that has begun, and what its members have in common."""

    task: int
    number: int
    policies: tuple[str, ...]
    """Names of the policies that are trained on it, in order; with task and number they tell open plays apart."""
    attempt: int
    index: int
    """Index of the instance."""
    component: str
    environment_version: str
    speaking: Mapping[str, Speaking]
    """By the name that the match has for them, the versions of all who play."""
    replaced: int = 0
    """See ``Group``, as the next two: of the attempts before this one."""
    lost: int = 0
    replayed: int = 0


@dataclass(frozen=True)
class KeptMember:
    """A member that has ended well."""

    episode: Episode
    transcripts: Transcripts
    outcome: EpisodeOutcome
    before: tuple[EpisodeOutcome, ...]
    """How its plays before ended."""
    prompt: bytes | None
    """Hash of the first prompt."""
    seconds: float = 0.0
    """For how long it was played, by the engine's clock."""


class OpenPlayTable:
    """Reads and writes of open plays and their members."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def keep(self, play: OpenPlay, members: Sequence[KeptMember]) -> None:
        """Store further members of a play, each in place of what is stored of it; those of an earlier attempt go.

        Nothing is kept of a task that has ended meanwhile.
        """
        with transaction(self._db):
            state = self._db.conn.execute("SELECT state FROM tasks WHERE id = ?", [play.task]).fetchone()
            if state is None or state[0] in FINISHED:
                return
            key = open_play(self._db, play)
            rows = [row for one in members for row in _rows(key, one)]
            again = [[key, one.episode.member] for one in members]
            self._db.conn.executemany("DELETE FROM open_trajectories WHERE play = ? AND member = ?", again)
            insert_all(self._db, "open_trajectories", rows)
            reach(Point.MEMBERS_INSIDE)
        reach(Point.MEMBERS_KEPT)

    def find(self, task: int, number: int, policies: Sequence[str]) -> OpenPlay | None:
        """The open play of this number that all of these policies are trained on."""
        found = self._plays(task, number)
        return next((play for play in found if set(policies) <= set(play.policies)), None)

    def members(self, play: OpenPlay) -> list[KeptMember]:
        """The stored members of a play, in order."""
        members: dict[int, list[dict[str, Any]]] = {}
        sql = "SELECT t.* FROM open_trajectories t JOIN open_plays p ON p.id = t.play WHERE"
        for row in self._db.query(f"{sql} {_SAME} ORDER BY t.member, t.rowid", _key(play)):
            members.setdefault(row["member"], []).append(row)
        return [_member(number, rows) for number, rows in members.items()]

    def speaking(self, task: int) -> set[Speaking]:
        """The versions that speak in open plays of a task: without one of them its play cannot go on."""
        rows = self._db.query("SELECT DISTINCT speaking FROM open_plays WHERE task = ?", [task])
        return {speaking for row in rows for speaking in _speaking(row["speaking"]).values()}

    def drop(self, play: OpenPlay) -> None:
        """Remove a play with its members: it is made anew."""
        drop_open(self._db, play)

    def drop_all(self, task: int) -> None:
        """Remove all open plays of a task: nobody learns from them any more."""
        self._db.execute("DELETE FROM open_plays WHERE task = ?", [task])

    def drop_others(self, task: int, number: int, policies: Sequence[str], play: OpenPlay | None) -> None:
        """Remove what is open of this number for any of these policies, but for the play in which they go on."""
        for other in self._plays(task, number):
            if other != play and set(policies) & set(other.policies):
                drop_open(self._db, other)

    def _plays(self, task: int, number: int) -> list[OpenPlay]:
        rows = self._db.query("SELECT * FROM open_plays WHERE task = ? AND number = ? ORDER BY id", [task, number])
        return [_play(row) for row in list(rows)]


_SAME = "p.task = ? AND p.number = ? AND p.policies = ?"


def open_play(database: Database, play: OpenPlay) -> int:
    """The row of an open play, made where it is not there yet, in the caller's transaction."""
    sql = f"SELECT id, attempt FROM open_plays p WHERE {_SAME}"
    for key, attempt in database.conn.execute(sql, _key(play)).fetchall():
        if attempt == play.attempt:
            return int(key)
        drop_open(database, play)
    row = {
        "task": play.task,
        "number": play.number,
        "policies": json.dumps(play.policies),
        "attempt": play.attempt,
        "instance": play.index,
        "component": play.component,
        "environment_version": play.environment_version,
        "speaking": json.dumps(play.speaking),
        "replaced": play.replaced,
        "lost": play.lost,
        "replayed": play.replayed,
        "created": wall_time(),
    }
    return insert(database, "open_plays", row)


def drop_open(database: Database, play: OpenPlay) -> None:
    """Remove an open play with its members, in the caller's transaction."""
    database.execute(f"DELETE FROM open_plays AS p WHERE {_SAME}", _key(play))


def _key(play: OpenPlay) -> list[Any]:
    return [play.task, play.number, json.dumps(play.policies)]


def _play(row: Mapping[str, Any]) -> OpenPlay:
    return OpenPlay(
        task=row["task"],
        number=row["number"],
        policies=tuple(json.loads(row["policies"])),
        attempt=row["attempt"],
        index=row["instance"],
        component=row["component"],
        environment_version=row["environment_version"],
        speaking=_speaking(row["speaking"]),
        replaced=row["replaced"],
        lost=row["lost"],
        replayed=row["replayed"],
    )


def _speaking(stored: str) -> dict[str, Speaking]:
    return {name: (number, checksum) for name, (number, checksum) in json.loads(stored).items()}


def _rows(play: int, kept: KeptMember) -> list[dict[str, object]]:
    """One row per trajectory, each agent's in order; what is of the whole member stands in its first row."""
    rows: list[dict[str, object]] = []
    places: dict[str, int] = {}
    for trajectory in kept.episode.trajectories or (NOTHING,):
        place = places[trajectory.agent] = places.get(trajectory.agent, -1) + 1
        text = kept.transcripts.get((kept.episode.member, trajectory.agent, place), Transcript())
        whole = None if rows else encode([kept.outcome, kept.before, kept.seconds]).decode()
        rows.append(
            {
                "play": play,
                "member": kept.episode.member,
                **said(trajectory, text),
                "outcome": whole,
                "prompt": None if rows else kept.prompt,
            }
        )
    return rows


def _member(number: int, rows: Sequence[Mapping[str, Any]]) -> KeptMember:
    outcome, before, seconds = decode(rows[0]["outcome"], type=tuple[EpisodeOutcome, tuple[EpisodeOutcome, ...], float])
    trajectories: list[Trajectory] = []
    transcripts: Transcripts = {}
    for row in rows:
        if row["agent"] or row["tokens"]:
            place = sum(one.agent == row["agent"] for one in trajectories)
            transcripts[number, row["agent"], place] = transcript_of(row["turns"], row["places"])
            trajectories.append(_trajectory(row))
    episode = Episode(
        member=number,
        status=outcome.status,
        trajectories=tuple(trajectories),
        parts=outcome.parts,
        metrics=outcome.metrics | ({"invalid": outcome.invalid} if outcome.invalid else {}),
        failure=outcome.failure,
        seconds=outcome.seconds,
        paid=outcome.paid,
    )
    return KeptMember(episode, transcripts, outcome, before, rows[0]["prompt"], seconds)


def _trajectory(row: Mapping[str, Any]) -> Trajectory:
    return replace(
        NOTHING,
        agent=row["agent"],
        tokens=np.frombuffer(row["tokens"], np.int32),
        mask=np.frombuffer(row["mask"], np.uint8),
        logprobs=np.frombuffer(row["logprobs"], np.float32),
        spans=tuple(Span(*span) for span in json.loads(row["spans"])),
        reward=row["reward"],
        cut=bool(row["cut"]),
    )
