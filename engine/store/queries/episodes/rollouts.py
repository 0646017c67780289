"""Reads of rollouts: steps, their groups, and the conversations in them. Standard library only.

Lists are read as ids first, from indexes alone, then as rows by id, a page at a time: so 100,000 trajectories are
counted and paged through without reading their tokens. A conversation's id is that of its first trajectory.

Steps and groups are those of one policy of the task, by default the first.
"""

from __future__ import annotations

import json
import sqlite3
from array import array
from collections.abc import Iterable, Sequence

from ..policies import PLAY, POLICY
from ..reader import Reader
from .excerpts import excerpt, first_place
from .rows import EVAL, TRAIN, ConversationSummary, GroupSummary, MemberSummary, StepSummary

_OWN = "evals WHERE suite = '' AND score IS NOT NULL AND split = (SELECT split FROM policies p WHERE p.id = policy)"
_KIND = "CASE g.split WHEN 'train' THEN 'train' ELSE 'eval' END"
"""SQL: whether a group was trained on or measured; test prompts and suites belong to the evaluation of their step."""
_SPLITS = {TRAIN: "'train'", EVAL: "'eval', 'test'"}
"""SQL: the splits of groups that were trained on, and of those that were measured."""
_WAITING = -1
"""Stands in the table ``played`` for the step of groups that no step has consumed."""
_LISTED = "(SELECT value FROM json_each(?))"


def steps(reader: Reader, task: int, since: int = 0, policy: str | None = None) -> list[StepSummary]:
    """Steps and evaluations from step ``since`` on, oldest first; groups that no step has consumed come last."""
    whose = (task, policy)
    rewards = _by_step(reader, f"metrics WHERE policy = {POLICY} AND name = 'reward'", "step", "value", whose, since)
    scores = _by_step(reader, f"{_OWN} AND policy = {POLICY}", "step", "score", whose, since)
    counted = f"SELECT kind, step, groups AS count, failures FROM played WHERE policy = {POLICY}"
    rows = reader.all(f"{counted} AND step >= ? ORDER BY step, kind DESC", *whose, since)
    rows += reader.all(f"{counted} AND step = {_WAITING}", *whose)
    return [
        StepSummary(
            split=row["kind"],
            step=None if row["step"] == _WAITING else row["step"],
            groups=row["count"],
            reward=(rewards if row["kind"] == "train" else scores).get(row["step"]),
            failures=row["failures"],
        )
        for row in rows
    ]


def group_ids(
    reader: Reader,
    task: int,
    split: str | None = None,
    step: int | None = None,
    failures: bool = False,
    policy: str | None = None,
) -> array[int]:
    """Ids of groups: with ``split`` those of a step or evaluation, by number; else all, newest first.

    ``step`` None with ``split``: groups that no step has consumed. ``failures``: only groups with an episode that did
    not end with status ok.
    """
    where, arguments = _groups_where(task, policy, split, step)
    if failures:
        where += " AND EXISTS (SELECT 1 FROM trajectories j WHERE j.\"group\" = g.id AND j.status != 'ok')"
    order = "g.suite, g.split, g.number" if split else "g.id DESC"
    by_step = "INDEXED BY idx_groups_of_step" if split else ""  # sqlite would read all by number
    return _ids(reader.all(f"SELECT g.id FROM groups g {by_step} WHERE {where} ORDER BY {order}", *arguments))


def numbered(
    reader: Reader, task: int, split: str, number: int, step: int | None = None, policy: str | None = None
) -> array[int]:
    """Ids of the groups with a number, newest first: at most one of training, and one of each evaluation.

    ``step``: only that step's or evaluation's.
    """
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


def groups(reader: Reader, ids: Sequence[int]) -> dict[int, GroupSummary]:
    """Some groups by id, with excerpts of what was said; one group's texts are in memory at a time."""
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
        " AND speaker = '' ORDER BY member, id",
        group["id"],
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
    """Ids of conversations: with ``group`` those of its play, by member; else newest first.

    With ``split`` they are those of a policy's step or evaluation, with ``policy`` alone all of that policy, with
    neither all of the task. ``failures``: only those that did not end with status ok; ``after``: only those with a
    trajectory above this id.
    """
    if group is not None:
        return _of_play(reader, group, failures)
    of_groups, arguments = _groups_where(task, policy, split, step)
    if split is None and policy is None:
        of_groups, arguments = "g.policy IN (SELECT id FROM policies WHERE task = ?)", (task,)
    where = f'j."group" IN (SELECT g.id FROM groups g WHERE {of_groups})'
    rows = "trajectories j"
    if after:  # what came since are the last rows of the table: they are looked at, and no list of all groups is made
        rows = "trajectories j NOT INDEXED"
        where = f'j.id > ? AND EXISTS (SELECT 1 FROM groups g WHERE g.id = j."group" AND {of_groups})'
        arguments = (after, *arguments)
    if failures:
        where += " AND j.status != 'ok'"
    grouped = f'SELECT min(j.id) FROM {rows} WHERE {where} GROUP BY j."group", j.member, j.agent'
    return array("q", sorted(_ids(reader.all(grouped, *arguments)), reverse=True))


def _of_play(reader: Reader, group: int, failures: bool) -> array[int]:
    """Ids of all conversations of a group's play: episode by episode, in each the group's own agents first."""
    where = f'j."group" IN {PLAY}' + (" AND j.status != 'ok'" if failures else "")
    return _ids(
        reader.all(
            f'SELECT min(j.id) FROM trajectories j WHERE {where} GROUP BY j."group", j.member, j.agent'
            " ORDER BY j.member, j.\"group\" != ?, j.speaker != '', min(j.id)",
            group,
            group,
        )
    )


def conversations(reader: Reader, ids: Sequence[int]) -> dict[int, ConversationSummary]:
    """Some conversations by id, with excerpts of what was said."""
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
    turns = 'SELECT turns FROM trajectories WHERE "group" = ? AND member = ? AND agent = ? ORDER BY id'
    about = excerpt(part[0] for part in reader.all(turns, row["group"], row["member"], row["agent"]))
    values = {**dict(row), "advantage": row["advantage"] or 0.0}
    return ConversationSummary(**values, prompt=about.short_prompt, reply=about.short_reply, replies=about.replies)


def said(reader: Reader, ids: Sequence[int]) -> dict[int, str]:
    """The text of some conversations, by id, as the stored JSON: what a search looks through."""
    rows = reader.all(
        "SELECT first.id, group_concat(coalesce(j.turns, '[]')) AS turns FROM trajectories first JOIN trajectories j"
        ' ON j."group" = first."group" AND j.member = first.member AND j.agent = first.agent'
        f" WHERE first.id IN {_LISTED} GROUP BY first.id",
        _json(ids),
    )
    return {row["id"]: row["turns"] for row in rows}


def _groups_where(task: int, policy: str | None, split: str | None, step: int | None) -> tuple[str, tuple[object, ...]]:
    where, arguments = f"g.policy = {POLICY}", (task, policy)
    if split is None:
        return where, arguments
    return f"{where} AND g.split IN ({_SPLITS[split]}) AND g.step IS ?", (*arguments, step)


def _by_step(
    reader: Reader, table_where: str, step: str, value: str, whose: tuple[int, str | None], since: int
) -> dict[int | None, float]:
    rows = reader.all(f"SELECT {step} AS step, {value} AS value FROM {table_where} AND {step} >= ?", *whose, since)
    return {row["step"]: row["value"] for row in rows}


def _ids(rows: Iterable[sqlite3.Row]) -> array[int]:
    return array("q", (row[0] for row in rows))


def _json(ids: Sequence[int]) -> str:
    return json.dumps(list(ids))
