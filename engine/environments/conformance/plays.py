"""Whole episodes with canned replies, and the time that the environment itself takes in them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..protocol import Ask, EpisodeOutcome, Reply
from .pace import Pace
from .replies import Canned
from .subject import Subject, instance

MOST_TURNS = 1000
"""Of one episode: a real one has used up its context by then."""


@dataclass(frozen=True)
class Played:
    """An episode of one train instance with one canned reply."""

    reply: Canned
    index: int
    outcome: EpisodeOutcome | None
    """None where it still asked after ``MOST_TURNS``."""
    turns: tuple[float, ...] = ()
    """Seconds of the environment's own before each ask, and before its end."""

    @property
    def score(self) -> float | None:
        """Mean of the agents' rewards, where there are any."""
        rewards = self.outcome.rewards if self.outcome is not None else {}
        return math.fsum(rewards.values()) / len(rewards) if rewards else None


class _Endless(Exception):
    """The episode goes on and on."""


async def play(subject: Subject, index: int, reply: Canned, pace: Pace) -> Played:
    """Play it to its end, or up to ``MOST_TURNS``."""
    turns: list[float] = []
    resumed = pace.clock()

    async def answer(ask: Ask) -> Reply:
        nonlocal resumed
        turns.append(pace.clock() - resumed)
        if len(turns) > MOST_TURNS:
            raise _Endless
        said = reply.reply(ask, len(turns) - 1)
        resumed = pace.clock()
        return said

    try:
        outcome = await subject.play(instance(subject, "train", index), answer)
    except _Endless:
        return Played(reply, index, None, tuple(turns))
    return Played(reply, index, outcome, (*turns, pace.clock() - resumed))
