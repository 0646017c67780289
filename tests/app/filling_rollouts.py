"""A task with as many trajectories as one likes, in a few seconds: what lists and reads are tried on."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import numpy as np

from marlaas.engine.models.find import find_base
from marlaas.engine.samplers.vocabulary import Vocabulary

from .filling import Filling

GROUP = 8
"""Members of a group."""
BATCH = 8
"""Groups of a step."""
SAID = Vocabulary(find_base("tiny") / "tokenizer.json").encode("What is 17 + 25?\nLet me see: it is 42, so that")
"""Tokens of the base that ships."""


def fill_rollouts(filling: Filling, steps: int, text: str = "so that it takes room ", tokens: int = 24) -> int:
    """A task with ``steps`` steps of 64 trajectories, an evaluation every tenth, and one failure a step."""
    task = filling.task(made=0, trajectories=0, steps=max(1, steps))
    with closing(sqlite3.connect(filling.path, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        for step in range(1, steps + 1):
            _step(connection, task, step, text, tokens, filling.now)
        connection.execute("UPDATE policies SET step = ? WHERE task = ?", [steps, task])
        connection.execute("COMMIT")
    return task


def _step(connection: sqlite3.Connection, task: int, step: int, text: str, tokens: int, now: float) -> None:
    (policy,) = connection.execute("SELECT id FROM policies WHERE task = ?", [task]).fetchone()
    reward = step / (step + 20)
    connection.execute(
        "INSERT INTO steps (policy, number, version, seconds, created) VALUES (?, ?, 1, 0.5, ?)", [policy, step, now]
    )
    connection.execute("INSERT INTO metrics VALUES (?, ?, 'reward', ?)", [policy, step, reward])
    for place in range(BATCH):
        _group(connection, policy, "train", (step - 1) * BATCH + place, step, text, tokens, now)
    if step % 10 == 0:
        connection.execute(
            "INSERT INTO evals (policy, step, environment_version, series, score, stderr, n, created)"
            " VALUES (?, ?, 'e1', 'e1', ?, 0.02, 8, ?)",
            [policy, step, reward + 0.05, now],
        )
        for place in range(BATCH):
            _group(connection, policy, "eval", place, step, text, tokens, now, members=1)


def _group(
    connection: sqlite3.Connection,
    policy: int,
    split: str,
    number: int,
    step: int,
    text: str,
    tokens: int,
    now: float,
    members: int = GROUP,
) -> None:
    sampled = np.arange(tokens) >= tokens // 2
    weights = np.linspace(-0.5, 0.5, int(sampled.sum()) * members).astype(np.float16)
    group = connection.execute(
        "INSERT INTO groups (policy, split, number, instance, version, environment_version, state, step, weights,"
        " created) VALUES (?, ?, ?, ?, ?, 'e1', 'consumed', ?, ?, ?)",
        [policy, split, number, number % 97, max(0, step - 2), step, weights.tobytes(), now],
    ).lastrowid
    rows = []
    for member in range(members):
        failed = split == "train" and number % BATCH == 3 and member == 5
        reward = None if failed else float((number + member + step) % 3 == 0)
        failure = {"message": "the sum was no number", "file": "sums.py", "line": 12, "traceback": ""}
        rows.append(
            (
                group,
                member,
                "agent",
                "error" if failed else "ok",
                reward,
                0.0 if reward is None else reward - 0.33,
                np.resize(np.array(SAID, np.int32), tokens).tobytes(),
                sampled.astype(np.uint8).tobytes(),
                np.where(sampled, -np.linspace(0.01, 6, tokens), 0).astype(np.float32).tobytes(),
                json.dumps([[tokens // 2, tokens, max(0, step - 2)]]),
                json.dumps(
                    [
                        {"role": "user", "text": f"What is {number} + {member}?"},
                        {"role": "assistant", "text": f"{number + member}, {text * 8}"},
                    ]
                ),
                json.dumps({"correct": reward or 0.0}),
                json.dumps(failure) if failed else None,
                0.2,
            )
        )
    connection.executemany(
        'INSERT INTO trajectories ("group", member, agent, status, reward, advantage, tokens, mask, logprobs, spans,'
        " turns, parts, failure, seconds) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        rows,
    )


Said = list[tuple[str, str]]
"""(role, text) of each turn."""
RULES = "You are given a text. Say in one word what it is about, and nothing else.\n\n"


def fill_answers(filling: Filling) -> int:
    """A task with a step of three groups: short replies; a long prompt and several turns; two agents, of whom one fails
    and one says nothing."""
    task = fill_rollouts(filling, 1)
    filling.execute('DELETE FROM trajectories WHERE "group" > 3')
    filling.execute("DELETE FROM groups WHERE id > 3")
    for place in range(GROUP):
        right = place > 5
        reply = ("assistant", "zzio" if right else "zziz")
        _say(filling, 1, place, "agent", "ok", float(right), [("user", "spell ozzi backwards"), reply])
        turns = [("system", "be brief"), ("user", f"{RULES}The lighthouse keeper and his dog"), ("assistant", "hm")]
        _say(filling, 2, place, "agent", "ok", place / 8, [*turns, ("tool", "7"), ("assistant", "dogs " * place)])
        asked, answered = ("user", f"{RULES}A bazaar: you have three apples"), ("assistant", "12 coins")
        agent, failed = "seller" if place % 2 else "buyer", place == 6
        turns = [asked] if place == 7 else [asked, answered]
        _say(filling, 3, place, agent, "error" if failed else "ok", None if failed else 1.0 - place % 2, turns)
    return task


def _say(filling: Filling, group: int, member: int, agent: str, status: str, reward: float | None, turns: Said) -> None:
    told = json.dumps([{"role": role, "text": text} for role, text in turns])
    values = "agent = ?, status = ?, reward = ?, turns = ?"
    sql = f'UPDATE trajectories SET {values} WHERE "group" = ? AND member = ?'
    filling.execute(sql, agent, status, reward, told, group, member)
