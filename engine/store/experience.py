"""Complete groups with their trajectories: written when a group closes, read back on restart. Engine side."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from sqlite_utils import Database

from ..faults import Point, reach
from ..trajectories import Episode, Failure, Group, Span, Split, Trajectory, Transcript, Transcripts
from .database import insert, insert_all, transaction

_NOTHING = Trajectory("", np.empty(0, np.int32), np.empty(0, np.uint8), np.empty(0, np.float32), ())

SHRUNK_AT_ONCE = 16
"""Groups in one transaction of ``shrink``, which then takes about a millisecond."""


@dataclass(frozen=True)
class PolicyGroup:
    """The group that one policy gets of a play."""

    policy: int
    group: Group
    transcripts: Transcripts


@dataclass(frozen=True)
class Beside:
    """What a policy said in a play that is not trained on it: a frozen policy or a version from an opponent pool."""

    speaker: str
    """The policy's name, or the words that mean a version."""
    episodes: tuple[Episode, ...]
    transcripts: Transcripts


class ExperienceTable:
    """Reads and writes of groups and trajectories."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def add_group(
        self, policy: int, split: Split, group: Group, transcripts: Transcripts, step: int | None = None
    ) -> None:
        """Store the group of a play that gives only one policy a group; see ``add_play``."""
        self.add_play(split, [PolicyGroup(policy, group, transcripts)], step=step)

    def add_play(
        self, split: Split, parts: Sequence[PolicyGroup], beside: Sequence[Beside] = (), step: int | None = None
    ) -> None:
        """Store the closed groups of one play, all or none; each replaces a group of the same policy and number.

        ``beside`` is stored with the first of them. ``step`` marks an evaluation, which is replaced only by one on the
        same environment version: the episodes of every evaluation series are kept.
        """
        with transaction(self._db):
            play = None
            for part in parts:
                self._remove(part, split, step)
                owner = self._insert(part, split, step, play)
                rows = [row for episode in part.group.episodes for row in _rows(owner, episode, part.transcripts)]
                if play is None:
                    play = owner
                    rows += _beside(owner, beside)
                insert_all(self._db, "trajectories", rows)
            reach(Point.GROUP_INSIDE)

    def _remove(self, part: PolicyGroup, split: Split, step: int | None) -> None:
        same = (
            "SELECT id FROM groups WHERE policy = ? AND split = ? AND number = ? AND step IS ?"
            " AND (step IS NULL OR environment_version = ?)"
        )
        identity = [part.policy, split, part.group.number, step, part.group.environment_version]
        for (old,) in self._db.conn.execute(same, identity).fetchall():
            self._db.execute('DELETE FROM trajectories WHERE "group" = ?', [old])
            self._db.execute("DELETE FROM groups WHERE id = ?", [old])

    def _insert(self, part: PolicyGroup, split: Split, step: int | None, play: int | None) -> int:
        group = part.group
        row = {
            "policy": part.policy,
            "split": split,
            "number": group.number,
            "instance": group.index,
            "version": group.version,
            "environment_version": group.environment_version,
            "state": "complete",
            "step": step,
            "replaced": group.replaced,
            "component": group.component,
            "lost": group.lost,
            "replayed": group.replayed,
            "play": play,
            "created": time.time(),
        }
        return insert(self._db, "groups", row)

    def waiting(self, policy: int) -> list[Group]:
        """Groups that are complete and that no step has consumed, in the order of their numbers."""
        groups = self._db.query(
            "SELECT * FROM groups WHERE policy = ? AND split = 'train' AND state = 'complete' ORDER BY number", [policy]
        )
        return [
            Group(
                number=g["number"],
                index=g["instance"],
                version=g["version"],
                environment_version=g["environment_version"],
                episodes=self._episodes(g["id"]),
                replaced=g["replaced"],
                component=g["component"],
                lost=g["lost"],
                replayed=g["replayed"],
            )
            for g in list(groups)
        ]

    def drop_unusable(self, policy: int, version: int) -> None:
        """Remove waiting groups that cannot be trained on, after the versions above ``version`` were lost.

        These are groups sampled by a lost version, and groups that a lost step had consumed and whose tokens have been
        removed since.
        """
        unusable = (
            "SELECT id FROM groups WHERE policy = ? AND split = 'train' AND state = 'complete'"
            " AND (version > ? OR shrunk = 1)"
        )
        with transaction(self._db):
            self._db.execute(f'DELETE FROM trajectories WHERE "group" IN ({unusable})', [policy, version])
            self._db.execute(f"DELETE FROM groups WHERE id IN ({unusable})", [policy, version])

    def shrink(self, policy: int, step: int) -> bool:
        """Remove the tokens of some groups that a step up to ``step`` consumed or evaluated; text and rewards stay.

        Returns whether there may be more of them. The database file does not become smaller: its free pages are used
        again. To shrink the file, sqlite would have to move the pages behind them, and readers would have to wait.
        """
        whole = "SELECT id FROM groups WHERE policy = ? AND shrunk = 0 AND step <= ? LIMIT ?"
        groups = [[row["id"]] for row in self._db.query(whole, [policy, step, SHRUNK_AT_ONCE])]
        if groups:
            with transaction(self._db):
                self._db.conn.executemany(
                    "UPDATE trajectories SET length = length(tokens) / 4, tokens = x'', mask = x'', logprobs = x''"
                    ' WHERE "group" = ?',
                    groups,
                )
                self._db.conn.executemany("UPDATE groups SET shrunk = 1, weights = NULL WHERE id = ?", groups)
                reach(Point.SHRINK_INSIDE)
            reach(Point.SHRINK_DONE)
        return len(groups) == SHRUNK_AT_ONCE

    def first_environment(self, policy: int, component: str = "") -> str | None:
        """The environment version of the policy's first stored group: what a pinned task stays with.

        Of groups that were played on a component of a mixture, where one is named.
        """
        first = "SELECT environment_version FROM groups WHERE policy = ? AND component = ? ORDER BY id LIMIT 1"
        return next((row["environment_version"] for row in self._db.query(first, [policy, component])), None)

    def last_environment(self, policy: int, component: str = "") -> str | None:
        """The environment version of the policy's newest stored group, likewise."""
        last = "SELECT environment_version FROM groups WHERE policy = ? AND component = ? ORDER BY id DESC LIMIT 1"
        return next((row["environment_version"] for row in self._db.query(last, [policy, component])), None)

    def environment_versions(self) -> set[str]:
        """All environment versions that stored groups were played on: a pinned task or a replay may need them."""
        return {row["environment_version"] for row in self._db.query("SELECT DISTINCT environment_version FROM groups")}

    def _episodes(self, group: int) -> tuple[Episode, ...]:
        episodes: dict[int, tuple[Episode, list[Trajectory]]] = {}
        for row in self._db.query(
            "SELECT * FROM trajectories WHERE \"group\" = ? AND speaker = '' ORDER BY id", [group]
        ):
            trajectory = Trajectory(
                agent=row["agent"],
                tokens=np.frombuffer(row["tokens"], np.int32),
                mask=np.frombuffer(row["mask"], np.uint8),
                logprobs=np.frombuffer(row["logprobs"], np.float32),
                spans=tuple(Span(*span) for span in json.loads(row["spans"])),
                reward=row["reward"],
                advantage=row["advantage"],
                cut=bool(row["cut"]),
            )
            if row["member"] not in episodes:
                failure = Failure(**json.loads(row["failure"])) if row["failure"] else None
                episode = Episode(row["member"], row["status"], (), json.loads(row["parts"]), failure=failure)
                episodes[row["member"]] = episode, []
            episodes[row["member"]][1].append(trajectory)
        return tuple(replace(episode, trajectories=tuple(own)) for episode, own in episodes.values())


def _rows(owner: int, episode: Episode, transcripts: Transcripts) -> list[dict[str, object]]:
    """One row per trajectory, each agent's in order; an episode that failed before its first turn has one row, too."""
    agents: Counter[str] = Counter()
    parts = []
    for trajectory in episode.trajectories or (_NOTHING,):
        parts.append((agents[trajectory.agent], trajectory))
        agents[trajectory.agent] += 1
    return [
        {
            "group": owner,
            "member": episode.member,
            "agent": trajectory.agent,
            "speaker": "",
            "status": episode.status,
            "reward": trajectory.reward,
            "advantage": trajectory.advantage,
            "cut": int(trajectory.cut),
            "tokens": trajectory.tokens.astype(np.int32, copy=False).tobytes(),
            "mask": trajectory.mask.astype(np.uint8, copy=False).tobytes(),
            "logprobs": trajectory.logprobs.astype(np.float32, copy=False).tobytes(),
            "spans": json.dumps([(span.start, span.stop, span.version) for span in trajectory.spans]),
            "turns": _turns(transcripts.get((episode.member, trajectory.agent, part), Transcript())),
            "parts": json.dumps(episode.parts) if episode.parts else "{}",
            "metrics": json.dumps(episode.metrics) if episode.metrics else "{}",
            "failure": _failure(episode.failure),
            "seconds": episode.seconds,
            "paid": _paid(episode, trajectory.agent) if part == 0 else None,
        }
        for part, trajectory in parts
    ]


def _beside(owner: int, beside: Sequence[Beside]) -> list[dict[str, object]]:
    return [
        row | {"speaker": one.speaker}
        for one in beside
        for episode in one.episodes
        if episode.trajectories
        for row in _rows(owner, episode, one.transcripts)
    ]


def _turns(transcript: Transcript) -> str:
    return json.dumps([{"role": role, "text": text} for role, text in transcript.turns])


def _paid(episode: Episode, agent: str) -> str | None:
    own = [(one.turns, one.amount, one.name) for one in episode.paid if one.agent == agent]
    return json.dumps(own) if own else None


def _failure(failure: Failure | None) -> str | None:
    return json.dumps(asdict(failure)) if failure else None
