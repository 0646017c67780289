"""Groups with trajectories, and samples of open groups."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
from msgspec.json import decode, encode
from sqlite_utils import Database

from ..clock import wall_time
from ..environments.protocol import EpisodeOutcome, FinishedEpisode
from ..faults import Point, reach
from ..trajectories import (
    Dropped,
    Episode,
    Failure,
    Group,
    Span,
    Split,
    Timing,
    Trajectory,
    Transcript,
    Transcripts,
    TurnReward,
)
from .database import Table, insert, insert_all, transaction
from .rows import FINISHED

UNHEARD = Transcript()
NOTHING = Trajectory("", np.empty(0, np.int32), np.empty(0, np.uint8), np.empty(0, np.float32), ())


def said(trajectory: Trajectory, transcript: Transcript) -> dict[str, object]:
    """Columns of an agent's conversation and reward."""
    return {
        "agent": trajectory.agent,
        "reward": trajectory.reward,
        "cut": int(trajectory.cut),
        "tokens": trajectory.tokens.astype(np.int32, copy=False).tobytes(),
        "mask": trajectory.mask.astype(np.uint8, copy=False).tobytes(),
        "logprobs": trajectory.logprobs.astype(np.float32, copy=False).tobytes(),
        "spans": encode([_span(span) for span in trajectory.spans]).decode(),
        "turns": _turns(transcript),
        "places": encode(transcript.places).decode() if transcript.places else None,
    }


def transcript_of(turns: str | None, places: str | None) -> Transcript:
    """The transcript from the columns of ``said``."""
    told = tuple((turn["role"], turn["text"]) for turn in json.loads(turns or "[]"))
    return Transcript(told, tuple(json.loads(places or "[]")))


def _span(span: Span) -> list[int | float | bool | None]:
    further = [span.fork, span.advantage] if span.fork or span.advantage is not None else []
    return [span.start, span.stop, span.version, *further]


def _turns(transcript: Transcript) -> str:
    told = [{"role": role, "text": text} for role, text in transcript.turns]
    try:
        return encode(told).decode()
    except UnicodeEncodeError:
        return json.dumps(told)


@dataclass(frozen=True)
class Draw:
    """An attempt at a group with known rewards, trained on or discarded."""

    number: int
    attempt: int
    position: int
    row: int
    rows: int
    """Rows of the train split at that time: with another number, ``row`` is another row."""
    least: float
    most: float
    spread: float


SHRUNK_AT_ONCE = 16
"""About a millisecond a transaction."""


@dataclass(frozen=True)
class PolicyGroup:
    """One policy's group."""

    policy: int
    group: Group
    transcripts: Transcripts


@dataclass(frozen=True)
class Beside:
    """Conversations of an untrained policy (frozen, or from a pool) in the same episodes."""

    speaker: str
    episodes: tuple[Episode, ...]
    transcripts: Transcripts


class ExperienceTable(Table):
    """Groups and trajectories."""

    def add_group(
        self, policy: int, split: Split, group: Group, transcripts: Transcripts, step: int | None = None
    ) -> None:
        self.add_play(split, [PolicyGroup(policy, group, transcripts)], step=step)

    def add_play(
        self,
        split: Split,
        parts: Sequence[PolicyGroup],
        beside: Sequence[Beside] = (),
        step: int | None = None,
        suite: str = "",
        draws: Sequence[Draw] = (),
        rewards: Sequence[Mapping[str, float]] | None = None,
        play: int | None = None,
        opens: OpenPlay | None = None,
        closes: OpenPlay | None = None,
    ) -> int:
        """Store closed groups of one play, all or none; each replaces its predecessor of the same policy and number.

        Returns the play's number: ``play`` of further groups. ``opens``: other policies still wait; another engine may
        continue the play with these versions. ``closes``: nobody waits, its open samples are removed.

        ``beside`` and ``draws`` belong to the first group. ``step`` marks an evaluation; only the same suite on the
        same environment version replaces it. ``rewards``: of an evaluation, by sample and agent, unasked agents
        included.
        """
        with transaction(self._db):
            for place, part in enumerate(parts):
                self._remove(part, split, step, suite)
                owner = self._insert(part, split, step, suite, play, rewards)
                rows = [row for episode in part.group.episodes for row in _rows(owner, episode, part.transcripts)]
                if not place:
                    rows += [row for other in beside for row in _beside(owner, other)]
                play = owner if play is None else play
                insert_all(self._db, "trajectories", rows)
            if draws:
                policy, number = parts[0].policy, parts[0].group.number
                self._db.execute("DELETE FROM draws WHERE policy = ? AND number = ?", [policy, number])
                insert_all(self._db, "draws", [{"policy": policy, **asdict(draw)} for draw in draws])
            if opens is not None:
                open_play(self._db, opens)
            if closes is not None:
                drop_open(self._db, closes)
            reach(Point.GROUP_INSIDE)
        assert play is not None, "a play has a group"
        return play

    def _remove(self, part: PolicyGroup, split: Split, step: int | None, suite: str) -> None:
        same = (
            "SELECT id FROM groups WHERE policy = ? AND split = ? AND number = ? AND step IS ? AND suite = ?"
            " AND (step IS NULL OR environment_version = ?)"
        )
        identity = [part.policy, split, part.group.number, step, suite, part.group.environment_version]
        for (old,) in self._db.conn.execute(same, identity).fetchall():
            self._db.execute('DELETE FROM trajectories WHERE "group" = ?', [old])
            self._db.execute("DELETE FROM groups WHERE id = ?", [old])

    def _insert(
        self,
        part: PolicyGroup,
        split: Split,
        step: int | None,
        suite: str,
        play: int | None,
        rewards: Sequence[Mapping[str, float]] | None,
    ) -> int:
        group = part.group
        row = {
            "policy": part.policy,
            "split": split,
            "suite": suite,
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
            "dropped": json.dumps(asdict(group.dropped)) if group.dropped is not None else None,
            "play": play,
            "rewards": json.dumps([dict(one) for one in rewards]) if rewards is not None else None,
            "created": wall_time(),
        }
        return insert(self._db, "groups", row)

    def draws(self, policy: int) -> list[Draw]:
        rows = self._db.query(
            "SELECT number, attempt, position, row, rows, least, most, spread FROM draws d WHERE policy = ? AND EXISTS"
            " (SELECT 1 FROM groups g WHERE g.policy = d.policy AND g.split = 'train' AND g.number = d.number)"
            " ORDER BY number, attempt",
            [policy],
        )
        return [Draw(**row) for row in rows]

    def waiting(self, policy: int) -> list[Group]:
        groups = self._db.query(
            "SELECT * FROM groups WHERE policy = ? AND split = 'train' AND state = 'complete' ORDER BY number", [policy]
        )
        same = ("number", "version", "environment_version", "replaced", "component", "lost", "replayed")
        return [
            Group(
                **{name: row[name] for name in same},
                index=row["instance"],
                episodes=self._episodes(row["id"]),
                dropped=_dropped(row["dropped"]),
            )
            for row in list(groups)
        ]

    def consumed(self, policy: int, first: int) -> set[int]:
        return {
            row["number"]
            for row in self._db.query(
                "SELECT number FROM groups WHERE policy = ? AND split = 'train' AND number >= ? AND state = 'consumed'",
                [policy, first],
            )
        }

    def measured(
        self, policy: int, split: Split, suite: str, step: int, environment_version: str
    ) -> dict[int, list[FinishedEpisode]]:
        groups = self._db.query(
            "SELECT id, instance, rewards FROM groups WHERE policy = ? AND split = ? AND suite = ? AND step = ?"
            " AND environment_version = ? AND rewards IS NOT NULL",
            [policy, split, suite, step, environment_version],
        )
        return {row["instance"]: self._measured(row["id"], json.loads(row["rewards"])) for row in list(groups)}

    def _measured(self, group: int, rewards: Sequence[dict[str, float]]) -> list[FinishedEpisode]:
        rows = self._db.query(
            "SELECT member, agent, status, turns, places, parts, metrics FROM trajectories"
            " WHERE \"group\" = ? AND speaker = '' ORDER BY member, id",
            [group],
        )
        episodes = []
        for member, of_member in groupby(rows, key=itemgetter("member")):
            own = list(of_member)
            texts = _transcripts(member, own)
            numbers = json.loads(own[0]["parts"] or "{}"), json.loads(own[0]["metrics"] or "{}")
            spoke = dict.fromkeys(agent for _, agent, _ in texts if agent)
            trajectories = tuple(replace(NOTHING, agent=agent, reward=rewards[member].get(agent)) for agent in spoke)
            episode = Episode(member, own[0]["status"], trajectories, *numbers)
            outcome = EpisodeOutcome(own[0]["status"], rewards[member], *numbers)
            episodes.append(FinishedEpisode(episode, texts, None, outcome))
        return episodes

    def drop_unusable(self, policy: int, version: int) -> None:
        """Remove waiting groups that cannot be trained on, after versions above ``version`` were lost.

        These were sampled by a lost version, or consumed by a lost step and have no tokens.
        """
        unusable = (
            "SELECT id FROM groups WHERE policy = ? AND split = 'train' AND state = 'complete'"
            " AND (version > ? OR shrunk = 1)"
        )
        with transaction(self._db):
            self._db.execute(f'DELETE FROM trajectories WHERE "group" IN ({unusable})', [policy, version])
            self._db.execute(f"DELETE FROM groups WHERE id IN ({unusable})", [policy, version])

    def shrink(self, policy: int, step: int) -> bool:
        """Remove tokens of groups that a step up to ``step`` consumed or evaluated; text and rewards stay.

        True: there may be more. The file does not shrink: free pages are reused.
        """
        groups = [
            [row["id"]]
            for row in self._db.query(
                "SELECT id FROM groups WHERE policy = ? AND shrunk = 0 AND step <= ? LIMIT ?",
                [policy, step, SHRUNK_AT_ONCE],
            )
        ]
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

    def first_environment(self, policy: int, place: str = "") -> str | None:
        """The version of the first stored group, for pinned tasks.

        ``place``: a mixture component or suite.
        """
        return self._environment(policy, place, "ASC")

    def last_environment(self, policy: int, place: str = "") -> str | None:
        """As ``first_environment``, of the newest stored group."""
        return self._environment(policy, place, "DESC")

    def _environment(self, policy: int, place: str, order: str) -> str | None:
        return next(
            (
                row["environment_version"]
                for row in self._db.query(
                    "SELECT environment_version FROM groups WHERE policy = ?"
                    f" AND CASE suite WHEN '' THEN component ELSE suite END = ? ORDER BY id {order} LIMIT 1",
                    [policy, place],
                )
            ),
            None,
        )

    def environment_versions(self) -> set[str]:
        """Pinned tasks and replays may need them.

        Skips through the index without reading groups.
        """
        return {
            row["version"]
            for row in self._db.query(
                "WITH RECURSIVE known (version) AS (SELECT min(environment_version) FROM groups UNION ALL"
                " SELECT (SELECT min(environment_version) FROM groups WHERE environment_version > known.version)"
                " FROM known WHERE known.version IS NOT NULL)"
                " SELECT version FROM known WHERE version IS NOT NULL"
            )
        }

    def _episodes(self, group: int) -> tuple[Episode, ...]:
        rows = self._db.query("SELECT * FROM trajectories WHERE \"group\" = ? AND speaker = '' ORDER BY id", [group])
        return tuple(_episode(member, list(own)) for member, own in groupby(rows, key=itemgetter("member")))


def _episode(member: int, rows: Sequence[Mapping[str, Any]]) -> Episode:
    first = rows[0]
    return Episode(
        member,
        first["status"],
        tuple(_trajectory(row, row["advantage"]) for row in rows),
        json.loads(first["parts"]),
        failure=Failure(**json.loads(first["failure"])) if first["failure"] else None,
        paid=tuple(TurnReward(row["agent"], *each) for row in rows for each in json.loads(row["paid"] or "[]")),
    )


def _dropped(text: str | None) -> Dropped | None:
    if text is None:
        return None
    known = json.loads(text)
    return Dropped(**known | {"rewards": tuple(known["rewards"])})


def _told(episode: Episode, transcripts: Transcripts) -> list[tuple[int, Trajectory, dict[str, object]]]:
    """Place among its agent's, trajectory and columns; ``NOTHING`` for an episode that failed before its first turn."""
    places = Counter[str]()
    told = []
    for trajectory in episode.trajectories or (NOTHING,):
        place = places[trajectory.agent]
        places[trajectory.agent] += 1
        text = transcripts.get((episode.member, trajectory.agent, place), UNHEARD)
        told.append((place, trajectory, {"member": episode.member, **said(trajectory, text)}))
    return told


def _rows(owner: int, episode: Episode, transcripts: Transcripts, speaker: str = "") -> list[dict[str, object]]:
    """One row per trajectory, by agent."""
    whole = {
        "group": owner,
        "speaker": speaker,
        "status": episode.status,
        "parts": json.dumps(episode.parts) if episode.parts else "{}",
        "metrics": json.dumps(episode.metrics) if episode.metrics else "{}",
        "failure": json.dumps(asdict(episode.failure)) if episode.failure else None,
        "seconds": episode.seconds,
    }
    return [
        {
            **whole,
            **columns,
            "advantage": trajectory.advantage,
            "paid": _paid(episode, trajectory.agent) if episode.paid and not place else None,
            "timing": None if number else _timing(episode.timing),
        }
        for number, (place, trajectory, columns) in enumerate(_told(episode, transcripts))
    ]


def _beside(owner: int, other: Beside) -> Iterator[dict[str, object]]:
    for episode in other.episodes:
        if episode.trajectories:
            yield from _rows(owner, episode, other.transcripts, other.speaker)


def _paid(episode: Episode, agent: str) -> str | None:
    own = [(one.turns, one.amount, one.name) for one in episode.paid if one.agent == agent]
    return json.dumps(own) if own else None


def _timing(timing: Timing | None) -> str | None:
    """[[[agent, asked, answered], …], over, ended], to 0.1 ms."""
    if timing is None:
        return None
    turns = [[turn.agent, round(turn.asked, 4), round(turn.answered, 4)] for turn in timing.turns]
    return encode([turns, round(timing.over, 4), round(timing.ended, 4)]).decode()


# Finished samples survive the engine; only stored groups are trained on.

Speaking = tuple[int, str]


@dataclass(frozen=True)
class OpenPlay:
    """A play, and the common data of its samples."""

    task: int
    number: int
    policies: tuple[str, ...]
    """With task and number they identify an open play."""
    attempt: int
    index: int
    component: str
    environment_version: str
    speaking: Mapping[str, Speaking]
    """By participant."""
    replaced: int = 0
    lost: int = 0
    replayed: int = 0


class OpenPlayTable(Table):
    """Open plays and their samples."""

    def keep(self, play: OpenPlay, members: Sequence[FinishedEpisode]) -> None:
        """Each replaces its row; those of an earlier attempt are removed.

        Stores nothing for an ended task.
        """
        with transaction(self._db):
            state = self._db.conn.execute("SELECT state FROM tasks WHERE id = ?", [play.task]).fetchone()
            if state is None or state[0] in FINISHED:
                return
            key = open_play(self._db, play)
            rows = [row for one in members for row in _open_rows(key, one)]
            again = [[key, one.episode.member] for one in members]
            self._db.conn.executemany("DELETE FROM open_trajectories WHERE play = ? AND member = ?", again)
            insert_all(self._db, "open_trajectories", rows)
            reach(Point.MEMBERS_INSIDE)
        reach(Point.MEMBERS_KEPT)

    def find(self, task: int, number: int, policies: Sequence[str]) -> OpenPlay | None:
        return next((play for play in self._plays(task, number) if set(policies) <= set(play.policies)), None)

    def members(self, play: OpenPlay) -> list[FinishedEpisode]:
        members: dict[int, list[dict[str, Any]]] = {}
        sql = "SELECT t.* FROM open_trajectories t JOIN open_plays p ON p.id = t.play WHERE"
        for row in self._db.query(f"{sql} {_SAME} ORDER BY t.member, t.rowid", _key(play)):
            members.setdefault(row["member"], []).append(row)
        return [_member(number, rows) for number, rows in members.items()]

    def speaking(self, task: int) -> set[Speaking]:
        return {
            speaking
            for row in self._db.query("SELECT DISTINCT speaking FROM open_plays WHERE task = ?", [task])
            for speaking in _speaking(row["speaking"]).values()
        }

    def drop(self, play: OpenPlay) -> None:
        drop_open(self._db, play)

    def drop_all(self, task: int) -> None:
        self._db.execute("DELETE FROM open_plays WHERE task = ?", [task])

    def drop_others(self, task: int, number: int, policies: Sequence[str], play: OpenPlay | None) -> None:
        for other in self._plays(task, number):
            if other != play and set(policies) & set(other.policies):
                drop_open(self._db, other)

    def _plays(self, task: int, number: int) -> list[OpenPlay]:
        rows = self._db.query("SELECT * FROM open_plays WHERE task = ? AND number = ? ORDER BY id", [task, number])
        return [_play(row) for row in list(rows)]


_SAME = "p.task = ? AND p.number = ? AND p.policies = ?"


def open_play(database: Database, play: OpenPlay) -> int:
    """Its row id, inserted if missing, in the caller's transaction."""
    for key, attempt in database.conn.execute(
        f"SELECT id, attempt FROM open_plays p WHERE {_SAME}", _key(play)
    ).fetchall():
        if attempt == play.attempt:
            return int(key)
        drop_open(database, play)
    row = asdict(play) | {
        "policies": json.dumps(play.policies),
        "speaking": json.dumps(play.speaking),
        "created": wall_time(),
    }
    return insert(database, "open_plays", row | {"instance": row.pop("index")})


def drop_open(database: Database, play: OpenPlay) -> None:
    """With its samples, in the caller's transaction."""
    database.execute(f"DELETE FROM open_plays AS p WHERE {_SAME}", _key(play))


def _key(play: OpenPlay) -> list[Any]:
    return [play.task, play.number, json.dumps(play.policies)]


def _play(row: Mapping[str, Any]) -> OpenPlay:
    values = {name: value for name, value in row.items() if name not in ("id", "created", "instance")}
    values |= {"policies": tuple(json.loads(row["policies"])), "speaking": _speaking(row["speaking"])}
    return OpenPlay(**values, index=row["instance"])


def _speaking(stored: str) -> dict[str, Speaking]:
    return {name: (number, checksum) for name, (number, checksum) in json.loads(stored).items()}


def _open_rows(play: int, kept: FinishedEpisode) -> list[dict[str, object]]:
    whole = {"outcome": encode([kept.outcome, kept.earlier, kept.seconds]).decode(), "prompt": kept.prompt}
    told = enumerate(_told(kept.episode, kept.transcripts))
    return [
        {"play": play, **columns, **(dict.fromkeys(whole) if number else whole)} for number, (_, _, columns) in told
    ]


def _member(number: int, rows: Sequence[Mapping[str, Any]]) -> FinishedEpisode:
    outcome, before, seconds = decode(rows[0]["outcome"], type=tuple[EpisodeOutcome, tuple[EpisodeOutcome, ...], float])
    spoken = [row for row in rows if row["agent"] or row["tokens"]]
    episode = Episode(
        member=number,
        status=outcome.status,
        trajectories=tuple(map(_trajectory, spoken)),
        parts=outcome.parts,
        metrics=outcome.metrics | ({"invalid": outcome.invalid} if outcome.invalid else {}),
        failure=outcome.failure,
        seconds=outcome.seconds,
        paid=outcome.paid,
    )
    return FinishedEpisode(episode, _transcripts(number, spoken), rows[0]["prompt"], outcome, seconds, before)


def _transcripts(member: int, rows: Iterable[Mapping[str, Any]]) -> Transcripts:
    places = Counter[str]()
    texts: Transcripts = {}
    for row in rows:
        texts[member, row["agent"], places[row["agent"]]] = transcript_of(row["turns"], row["places"])
        places[row["agent"]] += 1
    return texts


def _trajectory(row: Mapping[str, Any], advantage: float = 0.0) -> Trajectory:
    return Trajectory(
        agent=row["agent"],
        tokens=np.frombuffer(row["tokens"], np.int32),
        mask=np.frombuffer(row["mask"], np.uint8),
        logprobs=np.frombuffer(row["logprobs"], np.float32),
        spans=tuple(Span(*span) for span in json.loads(row["spans"])),
        reward=row["reward"],
        advantage=advantage,
        cut=bool(row["cut"]),
    )
