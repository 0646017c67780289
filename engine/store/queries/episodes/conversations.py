"""Reads one agent's conversation in one episode with its tokens, or the conversations of all agents of the episode.

Standard library only.
"""

from __future__ import annotations

import json
import sqlite3
import struct
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...rows import Turn
from ..policies import PLAY
from ..reader import Reader
from .rows import Paid, StoredConversation, StoredTrajectory, Tokens
from .turn_order import likely_places

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
    """The conversation that the trajectory ``id`` belongs to; None where there is no such trajectory."""
    heads = reader.all(_HEAD, id)
    if not heads:
        return None
    head = heads[0]
    rows = reader.all(_PARTS, head["group"], head["member"], head["agent"])
    failure = _table(head["failure"])
    parts = [_part(reader, head, row) for row in rows]
    known = all(len(part.places) == len(part.turns) for part in parts)
    if not known:
        places, alone = _likely(reader, head)
        parts = [replace(part, places=places.get(part.id, ())) for part in parts]
        known = alone
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
    """The conversation that the trajectory ``id`` belongs to, then those of all other agents of its episode.

    Empty where there is no such trajectory.
    """
    own = conversation(reader, id)
    if own is None:
        return []
    others = reader.all(_OTHERS, own.group, own.member, own.group, own.agent, own.group)
    found = (conversation(reader, row["id"]) for row in others)
    return [own, *(one for one in found if one is not None)]


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


def _likely(reader: Reader, head: sqlite3.Row) -> tuple[dict[int, tuple[int, ...]], bool]:
    """(likely places by trajectory, whether its conversation is alone in the episode, so that the order is certain)."""
    own: dict[tuple[int, str], list[tuple[int, Sequence[Turn]]]] = {}
    for row in reader.all(_EPISODE, head["group"], head["member"]):
        own.setdefault((row["group"], row["agent"]), []).append((row["id"], _turns(row)))
    told = [[turn for _, turns in parts for turn in turns] for parts in own.values()]
    found: dict[int, tuple[int, ...]] = {}
    for parts, places in zip(own.values(), likely_places(told), strict=True):
        start = 0
        for id, turns in parts:
            found[id] = tuple(places[start : start + len(turns)])
            start += len(turns)
    return found, len(own) == 1


def _turns(row: sqlite3.Row) -> tuple[Turn, ...]:
    return tuple(Turn(**turn) for turn in json.loads(row["turns"] or "[]"))


def _weights(reader: Reader, head: sqlite3.Row, id: int, count: int) -> tuple[float, ...]:
    """The weights of one trajectory: a group's weights are those of its trajectories, one after the other."""
    before = sum(sum(row["mask"] or b"") for row in reader.all(_MASKS, head["group"], id))
    own = head["weights"][2 * before : 2 * (before + count)]
    return struct.unpack(f"<{count}e", own) if len(own) == 2 * count else ()


def _table(text: str | None) -> dict[str, Any]:
    return dict(json.loads(text)) if text else {}
