"""The subject of the checks: a version of an environment in its own process, canned replies, and a bounded time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from types import TracebackType
from typing import TypeVar

from marlaas.plugins.messages import Answer, Ask, Reply, ToolCall

from ...trajectories import Split
from ..process.child import Child
from ..process.wire import Place
from ..protocol import EpisodeOutcome, EpisodeSpec
from ..served_version import PATIENCE, Lease, ServedVersion, first_ask

Item = TypeVar("Item")

LEAST = 2
NICENESS = 15
"""Of the checked process, so that it does not slow down the episodes of groups."""
MOST_TURNS = 1000
HOPELESS = 4
MOST_CHARACTERS = 16 << 20
_LONGEST_TOKEN = 8


class Pace:
    """Counts the time since it was made."""

    def __init__(self, seconds: float, pause: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._seconds = seconds
        self._pause = pause
        self._began = clock()

    @property
    def left(self) -> float:
        return max(0.1 * self._seconds, self._seconds - (self.clock() - self._began))

    async def take(self, items: Iterable[Item], share: float) -> AsyncIterator[Item]:
        for number, item in enumerate(items):
            if number >= LEAST and self.clock() - self._began > share * self._seconds:
                return
            yield item
            await asyncio.sleep(self._pause)


class Subject:
    """An environment in its own process during the ``async with`` block; hold the lease meanwhile.

    Junk may kill or block that process: no group runs there, and its deaths are not reported.
    """

    def __init__(self, lease: Lease) -> None:
        declared = lease.declared
        self.config, self.timeout = lease.config, min(PATIENCE, declared.timeout)
        self.agents, self.ranked, self.name = declared.agents, declared.ranked, declared.name
        self.movable = declared.own and not declared.scored
        """True if its author could move the grading into a score function."""
        self._lease = lease
        self._serving: ServedVersion | None = None
        self._watched: Child | None = None
        self._calmed: set[int] = set()

    async def __aenter__(self) -> Subject:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def renew(self) -> float:
        """Start a fresh process; returns the seconds it took. Raises ``BrokenPlugin``."""
        await self._stop()
        began = time.monotonic()
        self._serving = self._lease.serving.apart()
        await self._serving.warm()
        return time.monotonic() - began

    async def play(self, spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
        """Run one episode. Raises what ``answer`` raises; errors of the plugin are in the outcome."""
        if self._serving is None or self._serving.health.resting is not None:
            await self.renew()
            return await self.play(spec, answer)
        for pid in set(self._serving.pids) - self._calmed:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PGRP, pid, NICENESS)
            self._calmed.add(pid)
        return await self._serving.play(self.name, replace(spec, data=self._lease.data), answer)

    async def watch(self) -> None:
        if self._serving is None:
            await self.renew()
        assert self._serving is not None
        self._watched = await self._serving.watch()

    async def watched(self) -> tuple[Place, ...]:
        child, self._watched = self._watched, None
        return await child.watched() if child is not None else ()

    async def _stop(self) -> None:
        serving, self._serving = self._serving, None
        if serving is not None:
            await serving.stop("its check is over")


def instance(subject: Subject, split: Split, index: int, member: int = 0) -> EpisodeSpec:
    """An episode of the run with seed 0."""
    return EpisodeSpec(split, index, seed=0, member=member, config=subject.config, timeout=subject.timeout)


@dataclass(frozen=True)
class Draw:
    """An instance that was run up to its first ask, or its end without one. Needs no model."""

    split: Split
    index: int
    reached: Ask | EpisodeOutcome
    seconds: float = 0.0

    @cached_property
    def prompt(self) -> str | None:
        """A hash of its first prompt, messages and tools without the agent's name; None without a prompt."""
        if not isinstance(self.reached, Ask) or not self.reached.messages:  # its programs ask elsewhere
            return None
        messages = [(message.role, message.content, message.name) for message in self.reached.messages]
        return sha256(json.dumps([messages, self.reached.tools], sort_keys=True).encode()).hexdigest()

    @property
    def text(self) -> str:
        messages = self.reached.messages if isinstance(self.reached, Ask) else ()
        return "\n".join(message.content for message in messages)

    @property
    def place(self) -> str:
        return f"{self.split} instance {self.index}"


async def draw(subject: Subject, split: Split, index: int, pace: Pace, member: int = 0) -> Draw:
    """Run one instance up to its first ask."""
    began = pace.clock()
    reached = await first_ask(subject.play, instance(subject, split, index, member))
    return Draw(split, index, reached, pace.clock() - began)


async def draws(subject: Subject, instances: Iterable[tuple[Split, int]], pace: Pace, share: float) -> list[Draw]:
    """Draw instances until ``share`` of the time is used up; few if none has a prompt."""
    made: list[Draw] = []
    async for split, index in pace.take(instances, share):
        made.append(await draw(subject, split, index, pace))
        hopeless = len(made) >= HOPELESS and all(one.prompt is None for one in made)
        if hopeless or sum(len(one.text) for one in made) >= MOST_CHARACTERS:
            break
    return made


@dataclass(frozen=True)
class Canned:
    """One reply to every ask, as an untrained, a collapsed or a cheating policy gives."""

    label: str
    text: str
    calls: bool = False

    def reply(self, ask: Ask, turn: int) -> Reply:
        if self.calls:
            name = str(ask.tools[0].get("function", {}).get("name", "tool")) if ask.tools else "tool"
            return Reply("", "tool", turn, (ToolCall(name, {"": [None]}),))
        text = self.text
        for stop in ask.stop:
            text = text.partition(stop)[0] if stop else text
        longest = len(text) if ask.max_tokens is None else ask.max_tokens * _LONGEST_TOKEN
        return Reply(text[:longest], "stop" if len(text) <= longest else "length", turn)


def _answers(*texts: str) -> tuple[Canned, ...]:
    return tuple(Canned(f"the answer '{text}'", text) for text in texts)


EMPTY = Canned("the empty reply", "")
CONSTANTS = (
    EMPTY,
    *_answers("0", "1", "None", "False", "True", "yes", "no", "A"),
    Canned("the answer of 50 'a'", "a" * 50),
    Canned("the list of all numbers to 999", " ".join(map(str, range(1000)))),
    *_answers("<answer>0</answer>", "\\boxed{0}"),
)
JUNK = (
    *CONSTANTS,
    *_answers("NaN", "1e999", "²"),
    Canned("a reply of 20,000 characters", "word " * 4_000),
    Canned("a number of 5,000 digits", "9" * 5_000),
    Canned("5,000 open brackets", "[" * 5_000),
    Canned("control characters and rare Unicode", "\x00\x1b[2J\u202e\ufeff\u0661\U0001f9ea\u0301\n\t\r\x7f"),
    Canned("an unclosed tool call", '<tool_call>{"name": "x", "arguments": {'),
)
WRONG_CALL = Canned("a tool call with a wrong argument", "", calls=True)


@dataclass(frozen=True)
class Played:
    """An episode of one train instance with one canned reply."""

    reply: Canned
    index: int
    outcome: EpisodeOutcome | None
    """None if it asked too often."""
    turns: tuple[float, ...] = ()
    """Seconds of the environment itself before each ask, and before the end."""
    agents: frozenset[str] = frozenset()

    @property
    def rewards(self) -> dict[str, float]:
        return self.outcome.rewards if self.outcome is not None else {}

    @property
    def score(self) -> float | None:
        return math.fsum(self.rewards.values()) / len(self.rewards) if self.rewards else None

    @property
    def status(self) -> str:
        return self.outcome.status if self.outcome is not None else "endless"


class _Endless(Exception):
    """The episode has had as many turns as it may."""


async def play(subject: Subject, index: int, reply: Canned, pace: Pace, others: Canned | None = None) -> Played:
    """Run an episode to its end, or to ``MOST_TURNS`` replies.

    All but the first agent that is asked answer ``others``, if given.
    """
    turns: list[float] = []
    replies: Counter[tuple[str, int]] = Counter()
    resumed = pace.clock()

    async def answer(ask: Ask) -> Reply:
        nonlocal resumed
        turns.append(pace.clock() - resumed)
        if len(turns) > MOST_TURNS:
            raise _Endless
        place = ask.agent, ask.branch
        if ask.fork is not None:
            replies[place] = ask.fork.turns
        first = next(iter(replies), place)[0]
        text = (others if others and ask.agent != first else reply).reply(ask, replies[place])
        replies[place] += 1
        resumed = pace.clock()
        return text

    outcome = None
    with contextlib.suppress(_Endless):
        outcome = await subject.play(instance(subject, "train", index), answer)
        turns.append(pace.clock() - resumed)
    return Played(reply, index, outcome, tuple(turns), frozenset(agent for agent, _ in replies))
