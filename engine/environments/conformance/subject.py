"""What the checks observe, with canned replies and bounded time."""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from itertools import product
from typing import TypeVar

from marlaas.plugins.messages import Answer, Ask, Reply, ToolCall

from ...trajectories import Failure, Split
from ..protocol import Answering, EpisodeOutcome, EpisodeSpec
from ..served_version import PATIENCE, Lease, ServedVersion, first_ask

Item = TypeVar("Item")
Serve = Callable[[Answer], AbstractContextManager[Answer]]
"""Gives an answer that programs reach at an address, too."""

LEAST = 2
NICENESS = 15
"""So that groups' episodes do not slow down."""
MOST_TURNS = 1000
STARTING = 60.0
"""Seconds of a program: some import for long."""
HOPELESS = 4
MOST_CHARACTERS = 16 << 20
INSTANCES = 5
JUNK_INSTANCES = 3
AGAIN = 8
_LONGEST_TOKEN = 8


class Pace:
    """Counts the time since it was made."""

    def __init__(self, seconds: float, pause: float = 0.0) -> None:
        self._seconds = seconds
        self._pause = pause
        self._began = time.monotonic()

    async def take(self, items: Iterable[Item], share: float) -> AsyncIterator[Item]:
        """At least two, until ``share`` of the time."""
        for number, item in enumerate(items):
            if number >= LEAST and time.monotonic() - self._began > share * self._seconds:
                return
            yield item
            await asyncio.sleep(self._pause)


class Subject:
    """An environment in its own process, because junk may kill or block it.

    Hold the lease during the ``async with`` block.
    """

    def __init__(self, lease: Lease, serve: Serve = nullcontext) -> None:
        """``serve`` gives programs an address."""
        declared = lease.declared
        self.serve = serve
        self.config, self.timeout = lease.config, min(STARTING if declared.program else PATIENCE, declared.timeout)
        self.ranked, self.name = declared.ranked, declared.name
        self._lease = lease
        self._serving: ServedVersion | None = None
        self._calmed: set[int] = set()

    async def __aenter__(self) -> Subject:
        return self

    async def __aexit__(self, *_: object) -> None:
        serving, self._serving = self._serving, None
        if serving is not None:
            await serving.stop("its check is over")

    async def renew(self) -> float:
        """Returns the start in seconds. Raises ``BrokenPlugin``."""
        await self.__aexit__()
        began = time.monotonic()
        self._serving = self._lease.serving.apart()
        await self._serving.warm()
        return time.monotonic() - began

    async def play(self, spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
        """Raises what ``answer`` raises; plugin errors are in the outcome."""
        if self._serving is None or self._serving.health.resting is not None:
            await self.renew()
            return await self.play(spec, answer)
        for pid in set(self._serving.pids) - self._calmed:
            with suppress(OSError):
                os.setpriority(os.PRIO_PGRP, pid, NICENESS)
            self._calmed.add(pid)
        serve = nullcontext if isinstance(answer, Answering) else self.serve
        with serve(answer) as answering:
            return await self._serving.play(self.name, replace(spec, data=self._lease.data), answering)


def instance(subject: Subject, split: Split, index: int, member: int = 0) -> EpisodeSpec:
    """An episode with seed 0."""
    return EpisodeSpec(split, index, seed=0, member=member, config=subject.config, timeout=subject.timeout)


@dataclass(frozen=True)
class Draw:
    """An instance up to its first ask or end; needs no model."""

    split: Split
    index: int
    reached: Ask | EpisodeOutcome
    seconds: float = 0.0

    @cached_property
    def prompt(self) -> str | None:
        """Hash of messages and tools, without the agent's name."""
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
    began = time.monotonic()
    reached = await first_ask(subject.play, instance(subject, split, index, member))
    return Draw(split, index, reached, time.monotonic() - began)


async def draws(subject: Subject, instances: Iterable[tuple[Split, int]], pace: Pace, share: float) -> list[Draw]:
    """Draw until ``share`` of the time; few if none has a prompt."""
    made: list[Draw] = []
    async for split, index in pace.take(instances, share):
        made.append(await draw(subject, split, index, pace))
        hopeless = len(made) >= HOPELESS and all(drawn.prompt is None for drawn in made)
        if hopeless or sum(len(drawn.text) for drawn in made) >= MOST_CHARACTERS:
            break
    return made


async def draw_again(
    subject: Subject, seen: Sequence[Draw], pace: Pace, share: float
) -> list[tuple[Draw, Draw, Draw, Draw]]:
    """Draw some again, then in a fresh process in reverse order, there as another sample, too."""
    usable = [drawn for drawn in seen if drawn.prompt is not None]
    chosen = [d for split in ("train", "eval") for d in [d for d in usable if d.split == split][:INSTANCES]]
    again = [await draw(subject, d.split, d.index, pace) async for d in pace.take(chosen, share)]
    await subject.renew()
    repeats = []
    async for first, second in pace.take(reversed(list(zip(chosen, again, strict=False))), share):
        there = [await draw(subject, first.split, first.index, pace, member) for member in (0, 1)]
        repeats.append((first, second, *there))
    return repeats[::-1]  # type: ignore[return-value]  # four of them


@dataclass(frozen=True)
class Canned:
    """One reply to every ask, like an untrained, collapsed or cheating policy."""

    label: str
    text: str
    calls: bool = False

    def reply(self, ask: Ask, turn: int) -> Reply:
        if self.calls:
            name = str(ask.tools[0].get("function", {}).get("name", "tool")) if ask.tools else "tool"
            return Reply("", "tool", turn, (ToolCall(name, {"": [None]}),))
        text = self.text
        for stop in filter(None, ask.stop):
            text = text.partition(stop)[0]
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
OK = Canned("the answer 'OK'", "OK")
WRONG_CALL = Canned("a tool call with a wrong argument", "", calls=True)


@dataclass(frozen=True)
class Played:
    """One train instance with one canned reply."""

    reply: Canned
    index: int
    outcome: EpisodeOutcome
    turns: tuple[float, ...] = ()
    """The environment's own seconds before each ask and the end."""
    agents: frozenset[str] = frozenset()

    @property
    def score(self) -> float | None:
        rewards = self.outcome.rewards.values()
        return math.fsum(rewards) / len(rewards) if rewards else None


class _Endless(Exception):
    """The episode has had as many turns as it may."""


async def play(subject: Subject, index: int, reply: Canned, pace: Pace) -> Played:
    """At most ``MOST_TURNS`` replies."""
    turns: list[float] = []
    replies: Counter[tuple[str, int]] = Counter()
    resumed = time.monotonic()

    async def answer(ask: Ask) -> Reply:
        nonlocal resumed
        turns.append(time.monotonic() - resumed)
        if len(turns) > MOST_TURNS:
            raise _Endless
        place = ask.agent, ask.branch
        if ask.fork is not None:
            replies[place] = ask.fork.turns
        answered = reply.reply(ask, replies[place])
        replies[place] += 1
        resumed = time.monotonic()
        return answered

    try:
        outcome = await subject.play(instance(subject, "train", index), answer)
        turns.append(time.monotonic() - resumed)
    except _Endless:
        outcome = EpisodeOutcome("error", failure=Failure(f"it asks more than {MOST_TURNS:,} times: bound the turns"))
    return Played(reply, index, outcome, tuple(turns), frozenset(agent for agent, _ in replies))


async def reply_junk(subject: Subject, indices: Sequence[int], tools: bool, pace: Pace, share: float) -> list[Played]:
    """Every odd reply to a few instances; failed ones are not repeated."""
    played: list[Played] = []
    replies = (*JUNK, WRONG_CALL) if tools else JUNK
    async for index, reply in pace.take(product(indices[:JUNK_INSTANCES], replies), share):
        if not any(episode.reply == reply and episode.score is None for episode in played):
            played.append(await play(subject, index, reply, pace))
    return played


async def reply_again(
    subject: Subject, played: Sequence[Played], pace: Pace, share: float
) -> list[tuple[Played, Played]]:
    """Pairs of episodes with equal replies."""
    chosen = [episode for episode in played if episode.score is not None][:: max(1, len(played) // AGAIN)]
    return [(e, await play(subject, e.index, e.reply, pace)) async for e in pace.take(chosen, share)]
