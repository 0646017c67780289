"""The same episode for a plain ``def`` environment: it runs in a thread, and its asks block.

Flows in: an ``Episode`` of the process's event loop. Flows out: the same calls without ``await``. Once the episode is
closed (its time was up, or the engine cancelled it), every further ask ends the thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any

from .agent import Agent
from .episode import Episode
from .messages import Message, Reply
from .rewards import DEFAULT_AGENT
from .tools import Tool

Wait = Callable[[Coroutine[Any, Any, Reply]], Reply]
"""Runs a coroutine elsewhere and blocks until it has its result."""


def wait_on(loop: asyncio.AbstractEventLoop) -> Wait:
    """Wait in this thread for what happens on ``loop``."""
    return lambda coroutine: asyncio.run_coroutine_threadsafe(coroutine, loop).result()


class BlockingAgent:
    """An agent whose ``ask`` and ``act`` return the reply itself."""

    def __init__(self, agent: Agent, wait: Wait) -> None:
        self.name = agent.name
        self._agent = agent
        self._wait = wait

    def ask(
        self, content: str | Sequence[Message] = "", *, max_tokens: int | None = None, stop: str | Sequence[str] = ()
    ) -> Reply:
        """Say something new and wait for the model's reply."""
        return self._wait(self._agent.ask(content, max_tokens=max_tokens, stop=stop))

    def act(
        self,
        content: str | Sequence[Message] = "",
        *,
        max_turns: int = 8,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
    ) -> Reply:
        """Let the model use its tools until it answers without a call."""
        return self._wait(self._agent.act(content, max_turns=max_turns, max_tokens=max_tokens, stop=stop))


class BlockingEpisode:
    """The ``ep`` of a plain ``def`` environment function."""

    def __init__(self, episode: Episode, wait: Wait) -> None:
        self.split = episode.split
        self.index = episode.index
        self.config = episode.config
        self.task = episode.task
        self._episode = episode
        self._wait = wait

    @property
    def rng(self) -> Random:
        """Draws the task: the same for every member of a group."""
        return self._episode.rng

    @property
    def noise(self) -> Random:
        """Differs between the members of a group."""
        return self._episode.noise

    def agent(
        self, name: str = DEFAULT_AGENT, *, system: str | None = None, tools: Sequence[Tool] = ()
    ) -> BlockingAgent:
        """The agent of that name; ``system`` and ``tools`` are fixed when it is first named."""
        return BlockingAgent(self._episode.agent(name, system=system, tools=tools), self._wait)

    def ask(
        self, content: str | Sequence[Message] = "", *, max_tokens: int | None = None, stop: str | Sequence[str] = ()
    ) -> Reply:
        """Ask the only agent of a single-agent environment."""
        return self.agent().ask(content, max_tokens=max_tokens, stop=stop)

    def log(self, **values: object) -> None:
        """Put numbers or short texts beside the episode; they are charted, never trained."""
        self._episode.log(**values)

    def reward(self, value: float, agent: str = DEFAULT_AGENT) -> None:
        """Add to an agent's reward now, on top of what the function returns."""
        self._episode.reward(value, agent)
