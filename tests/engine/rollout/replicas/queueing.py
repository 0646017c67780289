"""Two samplers on virtual time, between which turns are divided as the engine does: passes, slots, prompts to be read.

A pass takes ``FIXED`` seconds, ``EACH`` for every conversation in it, ``READ`` for every token that is read. Nothing
waits for a clock, so that what a way to divide turns is worth can be said to the last digit.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np

from marlaas.engine.rollout.slots import Replicas, SamplerEndpoint

from ..endpoints import endpoint
from ..fake import FakeSampler

FIXED, EACH, READ = 1.0, 0.25, 0.05

Choose = Callable[[Replicas, int, float, SamplerEndpoint | None, int], tuple[SamplerEndpoint, int]]


def as_engine(
    replicas: Replicas, tokens: int, reply: float, here: SamplerEndpoint | None, held: int
) -> tuple[SamplerEndpoint, int]:
    """The engine's own choice."""
    return replicas.choose(np.zeros(tokens, np.int32), reply, here, held)


def staying(
    replicas: Replicas, tokens: int, reply: float, here: SamplerEndpoint | None, held: int
) -> tuple[SamplerEndpoint, int]:
    """A conversation is where it began."""
    return (here, tokens - held) if here else as_engine(replicas, tokens, reply, here, held)


@dataclass
class Talk:
    """A conversation: for each turn, tokens that are given and tokens that are sampled."""

    turns: Sequence[tuple[int, int]]
    replicas: Replicas
    begins: float = 0.0
    done: float = 0.0
    at: int = 0
    tokens: int = 0
    held: int = 0
    here: SamplerEndpoint | None = None
    unread: int = 0
    left: int = 0
    work: ExitStack = field(default_factory=ExitStack)


class Machine:
    """Two samplers that are alike, with so many slots each."""

    def __init__(self, slots: int, mean: float, choose: Choose = as_engine) -> None:
        """``mean``: tokens that a reply is expected to have."""
        self.endpoints = [endpoint(FakeSampler(), slots, 4096, name) for name in ("a", "b")]
        for one in self.endpoints:
            one.backlog.read, one.backlog.written = READ, EACH + FIXED / slots
        self.slots, self.mean, self.choose = slots, mean, choose
        self.active: dict[str, list[Talk]] = {"a": [], "b": []}
        self.waiting: dict[str, list[Talk]] = {"a": [], "b": []}
        self.passing: dict[str, bool] = {"a": False, "b": False}
        self.read = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.now = 0.0

    def run(self, talks: Sequence[Talk]) -> float:
        """All conversations to their ends; returns when the last one ended."""
        for talk in talks:
            self._at(talk.begins, lambda talk=talk: self._ask(talk))  # type: ignore[misc]
        while self._events:
            self.now, _, happen = heapq.heappop(self._events)
            happen()
        return max(talk.done for talk in talks)

    def _at(self, when: float, happen: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, happen))

    def _ask(self, talk: Talk) -> None:
        given, talk.left = talk.turns[talk.at]
        talk.tokens += given
        place, talk.unread = self.choose(talk.replicas, talk.tokens, self.mean, talk.here, talk.held)
        if talk.here is None:
            talk.replicas.begin(place, np.zeros(talk.tokens, np.int32).tobytes())
        talk.here = place
        talk.work.enter_context(place.backlog.turn(talk.unread, self.mean))
        self.waiting[place.name].append(talk)
        self._pass(place.name)

    def _pass(self, name: str) -> None:
        """Begin a pass, where there is work and none is under way."""
        while self.waiting[name] and len(self.active[name]) < self.slots:
            self.active[name].append(self.waiting[name].pop(0))
        found = self.active[name]
        if self.passing[name] or not found:
            return
        unread = sum(talk.unread for talk in found)
        self.read += unread
        for talk in found:
            talk.unread = 0
        self.passing[name] = True
        batch = list(found)
        self._at(self.now + FIXED + EACH * len(batch) + READ * unread, lambda: self._passed(name, batch))

    def _passed(self, name: str, batch: Sequence[Talk]) -> None:
        self.passing[name] = False
        for talk in batch:
            talk.left -= 1
            if not talk.left:
                self._ended(name, talk)
        self._pass(name)

    def _ended(self, name: str, talk: Talk) -> None:
        self.active[name].remove(talk)
        talk.work.close()
        talk.tokens += talk.turns[talk.at][1]
        talk.held, talk.at = talk.tokens, talk.at + 1
        if talk.at == len(talk.turns):
            talk.done = self.now
        else:
            self._at(self.now, lambda: self._ask(talk))
