"""Whole episodes with canned replies, and the time that the environment itself takes in them."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from marlaas.plugins.messages import Ask, Reply

from ..protocol import EpisodeOutcome
from .pace import Pace
from .replies import Canned
from .subject import Subject, instance

MOST_TURNS = 1000
"""Most turns of one episode: a real one has used up its context by then."""


@dataclass(frozen=True)
class Played:
    """An episode of one train instance with one canned reply."""

    reply: Canned
    index: int
    outcome: EpisodeOutcome | None
    """None where it asked once more after as many turns as it was to have."""
    turns: tuple[float, ...] = ()
    """Seconds that the environment itself took before each ask, and before the end."""
    agents: frozenset[str] = frozenset()
    """The agents that were asked."""

    @property
    def rewards(self) -> dict[str, float]:
        """Rewards by agent; empty where there are none."""
        return self.outcome.rewards if self.outcome is not None else {}

    @property
    def score(self) -> float | None:
        """Mean of the agents' rewards, where there are any."""
        return math.fsum(self.rewards.values()) / len(self.rewards) if self.rewards else None


class _Endless(Exception):
    """The episode has had as many turns as it was to have."""


async def play(
    subject: Subject, index: int, reply: Canned, pace: Pace, others: Canned | None = None, most: int = MOST_TURNS
) -> Played:
    """Play it to its end, or until it has had ``most`` replies; all but the first agent that is asked say ``others``,
    if given."""
    turns: list[float] = []
    replies: Counter[tuple[str, int]] = Counter()  # by conversation, each of which counts its own
    resumed = pace.clock()

    async def answer(ask: Ask) -> Reply:
        nonlocal resumed
        turns.append(pace.clock() - resumed)
        if len(turns) > most:
            raise _Endless
        place = ask.agent, ask.branch
        if ask.fork is not None:
            replies[place] = ask.fork.turns
        first = next(iter(replies), place)[0]
        said = (others if others and ask.agent != first else reply).reply(ask, replies[place])
        replies[place] += 1
        resumed = pace.clock()
        return said

    def asked() -> frozenset[str]:
        return frozenset(agent for agent, _ in replies)

    try:
        outcome = await subject.play(instance(subject, "train", index), answer)
    except _Endless:
        return Played(reply, index, None, tuple(turns), asked())
    return Played(reply, index, outcome, (*turns, pace.clock() - resumed), asked())
