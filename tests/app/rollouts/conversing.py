"""Conversations made by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from marlaas.engine.store.queries.episodes import StoredConversation, StoredTrajectory, Tokens
from marlaas.engine.store.rows import Turn

TOKENS = Tokens(
    ids=(1, 2, 3, 4, 5),
    sampled=(0, 0, 1, 1, 1),
    logprobs=(0.0, 0.0, -0.01, -1.0, -6.0),
    spans=((2, 4, 7), (4, 5, 8)),
    weights=(0.0, 0.5, math.nan),
)
TURNS = (Turn("user", "2+2="), Turn("thinking", "hm"), Turn("assistant", "It is\n4."))


def conversation(**values: Any) -> StoredConversation:
    """One with a single trajectory."""
    plain = StoredConversation(
        id=5,
        task=1,
        group=9,
        split="train",
        number=16,
        instance=7,
        step=3,
        version=1,
        environment_version="e1",
        component="",
        member=2,
        agent="agent",
        status="ok",
        reward=1.0,
        advantage=0.5,
        cut=False,
        seconds=0.2,
        parts=(StoredTrajectory(5, 5, TURNS, TOKENS),),
        scores={"correct": 1.0},
    )
    return replace(plain, **values)


def decode(ids: Any) -> str:
    """A tokenizer of five words."""
    return "".join("?abcde"[id] for id in ids)
