"""Reads of episodes, groups and conversations."""

from __future__ import annotations

import json
import sqlite3
import struct
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

from ..rows import PLAY, POLICY, SIDE_CALL, Turn
from .reader import Reader

TRAIN, EVAL = "train", "eval"


@dataclass(frozen=True)
class StepSummary:
    """One step's or evaluation's groups."""

    split: str
    step: int | None
    groups: int
    reward: float | None
    failures: int


@dataclass(frozen=True)
class MemberSummary:
    """One conversation of a group."""

    member: int
    agent: str
    status: str
    reward: float | None
    reply: str = ""
    replies: int = 0
    distinct: int = 0
    """Place of its last reply among the group's distinct ones, from 0."""


@dataclass(frozen=True)
class GroupSummary:
    """A group in a list."""

    id: int
    split: str
    number: int
    instance: int
    version: int
    environment_version: str
    step: int | None
    members: tuple[MemberSummary, ...]
    suite: str = ""
    prompt: str = ""

    @property
    def rewards(self) -> list[float]:
        return [member.reward for member in self.members if member.reward is not None]

    @property
    def staleness(self) -> int | None:
        """In versions, when trained on; None: not consumed."""
        return self.step - 1 - self.version if self.split == TRAIN and self.step is not None else None


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """One agent in one episode. Its id: that of its first trajectory."""

    id: int
    group: int
    split: str
    number: int
    step: int | None
    version: int = 0
    member: int
    agent: str
    status: str
    reward: float | None
    advantage: float
    policy: str = ""
    speaker: str = ""
    """The untrained speaker for ``policy``; else empty."""


@dataclass(frozen=True, kw_only=True)
class ConversationSummary(Conversation):
    """A conversation in a list."""

    tokens: int
    spoke: int | None = None
    prompt: str = ""
    reply: str = ""
    replies: int = 0


@dataclass(frozen=True)
class Tokens:
    """Arrays of a trajectory; empty if removed to free disk space."""

    ids: Sequence[int] = ()
    """(T,)"""
    sampled: Sequence[int] = ()
    """(T,): 1 if by the policy."""
    logprobs: Sequence[float] = ()
    spans: tuple[tuple[int, int, int], ...] = ()
    weights: Sequence[float] = ()
    """(N,): log importance weight of each sampled token, trainer over sampler; NaN: not trained on. Empty: not stored.
    """
    advantages: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class Paid:
    """A reward part paid during the episode."""

    turns: int
    amount: float
    name: str


@dataclass(frozen=True)
class StoredTrajectory:
    """One trajectory, with turns and tokens."""

    id: int
    length: int
    turns: tuple[Turn, ...]
    tokens: Tokens
    places: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StoredConversation(Conversation):
    """A conversation with all stored data."""

    task: int
    instance: int
    environment_version: str
    component: str
    cut: bool
    seconds: float
    parts: tuple[StoredTrajectory, ...]
    scores: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    paid: tuple[Paid, ...] = ()
    failure: str = ""
    file: str = ""
    line: int = 0
    traceback: str = ""
    play: int = 0
    """Id of the play's first group."""
    order_known: bool = True
    """False: ``places`` are one conversation after the other."""

    @property
    def spoke(self) -> int:
        spans = (span for part in self.parts for span in part.tokens.spans)
        return next((version for _, _, version in spans), self.version)

    @property
    def tokens(self) -> int:
        return sum(part.length for part in self.parts)


PROMPT, REPLY = 2000, 200
"""Characters in lists: prompts may differ only after a long common beginning."""
BETWEEN = " … "


@dataclass(frozen=True)
class Excerpt:
    """Hostile text: a model, an environment or a tenant wrote it."""

    prompt: str = ""
    reply: str = ""
    replies: int = 0

    @property
    def short_prompt(self) -> str:
        return self.prompt[:PROMPT]

    @property
    def short_reply(self) -> str:
        half = REPLY // 2
        return self.reply if len(self.reply) <= REPLY else f"{self.reply[:half]}{BETWEEN}{self.reply[-half:]}"


def excerpt(trajectories: Iterable[str | None]) -> Excerpt:
    """Of stored turns, in order.

    A damaged row gives an empty one and spoils no list.
    """
    prompt, reply, replies = "", "", 0
    try:
        for stored in trajectories:
            for turn in json.loads(stored or "[]"):
                role, text = turn["role"], turn["text"]
                if role == "assistant":
                    reply, replies = text, replies + 1
                elif role != "thinking" and not replies:
                    prompt = text
    except (ValueError, KeyError, TypeError):
        return Excerpt()
    return Excerpt(prompt, reply, replies)


def first_place(places: str | None) -> int:
    """Of a trajectory's first turn; 0: unknown."""
    try:
        return int(json.loads(places or "[0]")[0])
    except (ValueError, TypeError, LookupError):
        return 0


def reply_ends(turns: Sequence[Turn]) -> list[int]:
    """In turns. A thought and its answer are one reply."""
    roles = [*(turn.role for turn in turns), ""]
    return [
        place
        for place, (role, following) in enumerate(pairwise(roles), 1)
        if role == "assistant" or (role == "thinking" and following != "assistant")
    ]


_HEAD = """
SELECT j.id, p.task, p.name AS policy, j.speaker, coalesce(g.play, g.id) AS play, g.id AS "group", g.split, g.number,
       g.instance, g.step, g.version, g.environment_version, g.component, j.member, j.agent, j.status, j.reward,
       j.advantage, j.cut, j.seconds, j.parts, j.metrics, j.failure, g.weights
FROM trajectories j JOIN groups g ON g.id = j."group" JOIN policies p ON p.id = g.policy WHERE j.id = ?
"""
_PARTS = """
SELECT id, coalesce(length, length(tokens) / 4, 0) AS length, turns, places, tokens, mask,
       logprobs, spans, paid
FROM trajectories WHERE "group" = ? AND member = ? AND agent = ? ORDER BY id
"""
_OTHERS = f"""
SELECT min(j.id) AS id FROM trajectories j WHERE j."group" IN {PLAY} AND j.member = ?
AND NOT (j."group" = ? AND j.agent = ?) GROUP BY j."group", j.agent ORDER BY j."group" != ?, min(j.id)
"""
_EPISODE = f"""
SELECT j.id, j."group", j.agent, j.turns FROM trajectories j WHERE j."group" IN {PLAY} AND j.member = ? ORDER BY j.id
"""
_MASKS = 'SELECT mask FROM trajectories WHERE "group" = ? AND id < ? ORDER BY id'


def conversation(reader: Reader, id: int) -> StoredConversation | None:
    """By trajectory id."""
    heads = reader.all(_HEAD, id)
    if not heads:
        return None
    head = heads[0]
    rows = reader.all(_PARTS, head["group"], head["member"], head["agent"])
    failure = _table(head["failure"])
    parts = [_part(reader, head, row) for row in rows]
    known = all(len(part.places) == len(part.turns) for part in parts)
    if not known:
        places, known = _one_after_another(reader, head)
        parts = [replace(part, places=places.get(part.id, ())) for part in parts]
    return StoredConversation(
        **{name: head[name] for name in ("task", "group", "split", "number", "instance", "step", "version")},
        **{name: head[name] for name in ("environment_version", "component", "member", "agent", "status", "reward")},
        **{name: head[name] for name in ("policy", "speaker", "play")},
        id=rows[0]["id"],
        advantage=head["advantage"] or 0.0,
        cut=bool(head["cut"]),
        seconds=head["seconds"] or 0.0,
        parts=tuple(parts),
        scores=_table(head["parts"]),
        metrics=_table(head["metrics"]),
        paid=tuple(Paid(*entry) for entry in json.loads(rows[0]["paid"] or "[]")),
        failure=str(failure.get("message", "")),
        file=str(failure.get("file", "")),
        line=int(failure.get("line", 0)),
        traceback=str(failure.get("traceback", "")),
        order_known=known,
    )


def episode(reader: Reader, id: int) -> list[StoredConversation]:
    """The conversation of the trajectory ``id``, then the episode's others."""
    own = conversation(reader, id)
    if own is None:
        return []
    others = reader.all(_OTHERS, own.group, own.member, own.group, own.agent, own.group)
    return [own, *(one for one in (conversation(reader, row["id"]) for row in others) if one is not None)]


def _part(reader: Reader, head: sqlite3.Row, row: sqlite3.Row) -> StoredTrajectory:
    ids, logprobs, mask = array("i", row["tokens"] or b""), array("f", row["logprobs"] or b""), row["mask"] or b""
    stored = json.loads(row["spans"] or "[]")
    spans = tuple((start, stop, version) for start, stop, version, *_ in stored)
    own = tuple(span[4] if len(span) > 4 else None for span in stored)
    own = own if any(advantage is not None for advantage in own) else ()
    weights = _weights(reader, head, row["id"], sum(mask)) if head["weights"] and ids else ()
    tokens = Tokens(ids, mask, logprobs, spans, weights, own)
    places = tuple(json.loads(row["places"] or "[]"))
    return StoredTrajectory(row["id"], row["length"], _turns(row), tokens, places)


def _one_after_another(reader: Reader, head: sqlite3.Row) -> tuple[dict[int, tuple[int, ...]], bool]:
    """Places by trajectory, for an older marlaas; True if the episode has no other conversation."""
    places, count = {}, 0
    rows = reader.all(_EPISODE, head["group"], head["member"])
    for row in rows:
        turns = len(_turns(row))
        places[row["id"]] = tuple(range(count, count + turns))
        count += turns
    return places, len({(row["group"], row["agent"]) for row in rows}) == 1


def _turns(row: sqlite3.Row) -> tuple[Turn, ...]:
    return tuple(Turn(**turn) for turn in json.loads(row["turns"] or "[]"))


def _weights(reader: Reader, head: sqlite3.Row, id: int, count: int) -> tuple[float, ...]:
    before = sum(sum(row["mask"] or b"") for row in reader.all(_MASKS, head["group"], id))
    own = head["weights"][2 * before : 2 * (before + count)]
    return struct.unpack(f"<{count}e", own) if len(own) == 2 * count else ()


def _table(text: str | None) -> dict[str, Any]:
    return dict(json.loads(text)) if text else {}


# Ids are read from indexes only, rows page by page: 100,000 trajectories are listed without their tokens. Default
# policy: the task's first.

_KIND = "CASE g.split WHEN 'train' THEN 'train' ELSE 'eval' END"
_SPLITS = {TRAIN: "'train'", EVAL: "'eval', 'test'"}
_WAITING = -1
_LISTED = "(SELECT value FROM json_each(?))"


def rollout_steps(reader: Reader, task: int, since: int = 0, policy: str | None = None) -> list[StepSummary]:
    """From step ``since`` on, oldest first; unconsumed groups last."""
    sql = (
        f"SELECT kind AS split, nullif(step, {_WAITING}) AS step, groups, CASE kind WHEN 'train' THEN (SELECT value"
        " FROM metrics m WHERE m.policy = d.policy AND m.step = d.step AND name = 'reward') ELSE (SELECT score"
        " FROM evals e WHERE e.policy = d.policy AND suite = '' AND score IS NOT NULL AND e.step = d.step"
        " AND split = (SELECT split FROM policies WHERE id = d.policy) ORDER BY e.id DESC LIMIT 1) END AS reward,"
        " failures"
        f" FROM played d WHERE policy = {POLICY} AND (d.step >= ? OR d.step = {_WAITING})"
        f" ORDER BY d.step = {_WAITING}, d.step, kind DESC"
    )
    return reader.rows(StepSummary, sql, task, policy, since)


def group_ids(
    reader: Reader,
    task: int,
    split: str | None = None,
    step: int | None = None,
    failures: bool = False,
    policy: str | None = None,
) -> array[int]:
    """With ``split`` those of a step or evaluation, by number; else all, newest first.

    ``step`` None with ``split``: unconsumed. ``failures``: only with an episode without status ok.
    """
    where, arguments = _groups_where(task, policy, split, step)
    if failures:
        where += " AND EXISTS (SELECT 1 FROM trajectories j WHERE j.\"group\" = g.id AND j.status != 'ok')"
    order = "g.suite, g.split, g.number" if split else "g.id DESC"
    by_step = "INDEXED BY idx_groups_of_step" if split else ""  # sqlite would read all by number
    return _ids(reader.all(f"SELECT g.id FROM groups g {by_step} WHERE {where} ORDER BY {order}", *arguments))


def group_ids_numbered(
    reader: Reader, task: int, split: str, number: int, step: int | None = None, policy: str | None = None
) -> array[int]:
    """Newest first: at most one of training, one of each evaluation."""
    where, arguments = ("AND step = ?", (step,)) if step is not None else ("", ())
    return _ids(
        reader.all(
            f"SELECT id FROM groups g WHERE policy = {POLICY} AND split IN ({_SPLITS[split]}) AND number = ? {where}"
            " ORDER BY suite, split = 'test', id DESC",
            task,
            policy,
            number,
            *arguments,
        )
    )


def group_rows(reader: Reader, ids: Sequence[int]) -> dict[int, GroupSummary]:
    """With excerpts; one group's texts are in memory at a time."""
    rows = reader.all(
        f"SELECT id, {_KIND} AS split, number, instance, version, environment_version, step,"
        " CASE WHEN suite = '' AND split = 'test' THEN 'test' ELSE suite END AS suite"
        f" FROM groups g WHERE id IN {_LISTED}",
        _json(ids),
    )
    return {row["id"]: _group(reader, row) for row in rows}


def _group(reader: Reader, group: sqlite3.Row) -> GroupSummary:
    told: dict[tuple[int, str], list[sqlite3.Row]] = {}
    for row in reader.all(
        'SELECT member, agent, status, reward, turns, places FROM trajectories WHERE "group" = ?'
        " AND speaker = '' AND NOT instr(agent, ?) ORDER BY member, id",
        group["id"],
        SIDE_CALL,
    ):
        told.setdefault((row["member"], row["agent"]), []).append(row)
    members: list[MemberSummary] = []
    prompts: list[tuple[int, str]] = []
    distinct: dict[str, int] = {}
    for own in told.values():
        about = excerpt(row["turns"] for row in own)
        number = distinct.setdefault(about.reply.strip(), len(distinct))
        values = {name: own[0][name] for name in ("member", "agent", "status", "reward")}
        members.append(MemberSummary(**values, reply=about.short_reply, replies=about.replies, distinct=number))
        if about.prompt and members[-1].member == members[0].member:
            prompts.append((first_place(own[0]["places"]), about.short_prompt))
    _, prompt = min(prompts, key=lambda one: one[0], default=(0, ""))
    return GroupSummary(**dict(group), members=tuple(members), prompt=prompt)


def conversation_ids(
    reader: Reader,
    task: int,
    split: str | None = None,
    step: int | None = None,
    group: int | None = None,
    failures: bool = False,
    after: int = 0,
    policy: str | None = None,
) -> array[int]:
    """With ``group`` those of its play, by sample; else newest first.

    With ``split`` a policy's step or evaluation, with only ``policy`` all of it, with neither the whole task.
    ``failures``: only without status ok; ``after``: only with a trajectory above this id.
    """
    if group is not None:
        return _of_play(reader, group, failures)
    of_groups, arguments = _groups_where(task, policy, split, step)
    if split is None and policy is None:
        of_groups, arguments = "g.policy IN (SELECT id FROM policies WHERE task = ?)", (task,)
    where = f'j."group" IN (SELECT g.id FROM groups g WHERE {of_groups})'
    rows = "trajectories j"
    if after:  # newer ones are the last rows of the table: no list of all groups is made
        rows = "trajectories j NOT INDEXED"
        where = f'j.id > ? AND EXISTS (SELECT 1 FROM groups g WHERE g.id = j."group" AND {of_groups})'
        arguments = (after, *arguments)
    if failures:
        where += " AND j.status != 'ok'"
    return array(
        "q",
        sorted(
            _ids(
                reader.all(
                    f'SELECT min(j.id) FROM {rows} WHERE {where} GROUP BY j."group", j.member, j.agent', *arguments
                )
            ),
            reverse=True,
        ),
    )


def _of_play(reader: Reader, group: int, failures: bool) -> array[int]:
    where = f'j."group" IN {PLAY}' + (" AND j.status != 'ok'" if failures else "")
    return _ids(
        reader.all(
            f'SELECT min(j.id) FROM trajectories j WHERE {where} GROUP BY j."group", j.member, j.agent'
            " ORDER BY j.member, j.\"group\" != ?, j.speaker != '', min(j.id)",
            group,
            group,
        )
    )


def conversation_rows(reader: Reader, ids: Sequence[int]) -> dict[int, ConversationSummary]:
    """With excerpts."""
    rows = reader.all(
        f'SELECT j.id, j."group", {_KIND} AS split, g.number, g.step, j.member, j.agent, j.status, j.reward,'
        " j.advantage, coalesce(j.length, length(j.tokens) / 4, 0) AS tokens, p.name AS policy, g.version,"
        " j.speaker, json_extract(j.spans, '$[0][2]') AS spoke"
        ' FROM trajectories j JOIN groups g ON g.id = j."group" JOIN policies p ON p.id = g.policy'
        f" WHERE j.id IN {_LISTED}",
        _json(ids),
    )
    return {row["id"]: _conversation(reader, row) for row in rows}


def _conversation(reader: Reader, row: sqlite3.Row) -> ConversationSummary:
    about = excerpt(
        part[0]
        for part in reader.all(
            'SELECT turns FROM trajectories WHERE "group" = ? AND member = ? AND agent = ? ORDER BY id',
            row["group"],
            row["member"],
            row["agent"],
        )
    )
    values = {**dict(row), "advantage": row["advantage"] or 0.0}
    return ConversationSummary(**values, prompt=about.short_prompt, reply=about.short_reply, replies=about.replies)


def conversation_texts(reader: Reader, ids: Sequence[int]) -> dict[int, str]:
    """Stored JSON by id."""
    return {
        row["id"]: row["turns"]
        for row in reader.all(
            "SELECT first.id, group_concat(coalesce(j.turns, '[]')) AS turns FROM trajectories first"
            " JOIN trajectories j"
            ' ON j."group" = first."group" AND j.member = first.member AND j.agent = first.agent'
            f" WHERE first.id IN {_LISTED} GROUP BY first.id",
            _json(ids),
        )
    }


def _groups_where(task: int, policy: str | None, split: str | None, step: int | None) -> tuple[str, tuple[object, ...]]:
    where, arguments = f"g.policy = {POLICY}", (task, policy)
    if split is None:
        return where, arguments
    return f"{where} AND g.split IN ({_SPLITS[split]}) AND g.step IS ?", (*arguments, step)


def _ids(rows: Iterable[sqlite3.Row]) -> array[int]:
    return array("q", (row[0] for row in rows))


def _json(ids: Sequence[int]) -> str:
    return json.dumps(list(ids))


# Text is exact, and stays after tokens are removed.

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
    """One agent's whole conversation."""

    turns: tuple[Turn, ...]
    replies: tuple[int, ...]
    reward: float | None
    cut: bool
    step: int | None = None
    """The step that consumed or evaluated it; None while it waits. An untrained policy's has a trained one's."""


@dataclass(frozen=True)
class RecordedEpisode:
    """An episode that was not cancelled."""

    member: int
    status: str
    agents: dict[str, RecordedAgent] = field(default_factory=dict)
    parts: dict[str, float] = field(default_factory=dict)
    failure: str = ""


@dataclass(frozen=True)
class RecordedGroup:
    """The episodes of one play; an evaluation's has one."""

    number: int
    instance: int
    environment_version: str
    step: int | None
    """Of its first policy."""
    episodes: tuple[RecordedEpisode, ...]


def recorded_groups(reader: Reader, task: int, split: str, last: int, component: str = "") -> list[RecordedGroup]:
    """The ``last`` groups of a split, train or eval, in order.

    ``component``: of a mixture. Several policies' groups of one play are one here: rewards depend on all.
    """
    rows = reader.all(_PLAYS, task, split, component, last)
    return [_recorded_group(row, reader.all(_TRAJECTORIES, row["groups"])) for row in reversed(rows)]


def _recorded_group(group: sqlite3.Row, rows: Sequence[sqlite3.Row]) -> RecordedGroup:
    return RecordedGroup(
        number=group["number"],
        instance=group["instance"],
        environment_version=group["environment_version"],
        step=group["step"],
        episodes=tuple(_episode(member, list(own)) for member, own in groupby(rows, itemgetter("member"))),
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
