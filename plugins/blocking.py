"""The episode of a plain ``def`` environment: it runs in a thread, and its asks block.

Calls are ``Episode``'s without ``await``. Once closed (time up or cancelled), an ask ends the thread.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine, Sequence
from random import Random
from typing import Any, Protocol, TypeVar

from .agent import Agent, results_here
from .episode import Episode
from .messages import Endpoint, Message, Reply
from .rewards import DEFAULT_AGENT, EVERY_AGENT
from .sandbox import MEMORY_MB, SECONDS, Ran, Sandbox
from .tools import Tool

_Result = TypeVar("_Result")


class Wait(Protocol):
    """Runs a coroutine elsewhere and blocks."""

    def __call__(self, coroutine: Coroutine[Any, Any, _Result], /) -> _Result:
        """Raises what the coroutine raises."""


def wait_on(loop: asyncio.AbstractEventLoop) -> Wait:
    """Wait in this thread for ``loop``."""

    def wait(coroutine: Coroutine[Any, Any, _Result], /) -> _Result:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    return wait


class BlockingAgent:
    """An agent whose ``ask`` and ``act`` return the reply itself."""

    def __init__(self, agent: Agent, wait: Wait) -> None:
        self.name = agent.name
        self._agent = agent
        self._wait = wait

    def ask(
        self, content: str | Sequence[Message] = "", *, max_tokens: int | None = None, stop: str | Sequence[str] = ()
    ) -> Reply:
        """Say something new and wait for the model's reply; see ``Agent.ask``.

        Several agents are asked at the same time from threads of their own: ``pool.map(lambda a: a.ask(…), agents)``.
        """
        return self._wait(self._agent.ask(content, max_tokens=max_tokens, stop=stop))

    def act(
        self,
        content: str | Sequence[Message] = "",
        *,
        max_turns: int = 8,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
    ) -> Reply:
        """Let the model use its tools, which may block, until it answers without a call; see ``Agent.act``."""
        news = content
        for turn in range(1, max_turns + 1):
            reply = self.ask(news, max_tokens=max_tokens, stop=stop)
            if not reply.tool_calls or turn == max_turns:
                return reply
            news = self.results_of(reply)
        raise ValueError(f"max_turns must be at least 1, not {max_turns}")

    def results_of(self, reply: Reply) -> list[Message]:
        """Carry out the tool calls of a reply; see ``Agent.results_of``.

        Plain tools run in this thread: they may block, and ask other agents. Those that are ``async`` run on the loop.
        """
        if any(inspect.iscoroutinefunction(self._agent.tools.get(call.name)) for call in reply.tool_calls):
            return self._wait(self._agent.results_of(reply))
        return results_here(self._agent, reply)

    def fork(self, name: str | None = None) -> BlockingAgent:
        """Another agent with this one's history up to now; see ``Agent.fork``."""
        return BlockingAgent(self._agent.fork(name), self._wait)


class BlockingSandbox:
    """Its ``python`` returns the result itself."""

    def __init__(self, sandbox: Sandbox, wait: Wait) -> None:
        self._sandbox = sandbox
        self._wait = wait

    def python(self, code: str, stdin: str = "", *, seconds: float = SECONDS, memory_mb: int = MEMORY_MB) -> Ran:
        """See ``Sandbox.python``."""
        return self._wait(self._sandbox.python(code, stdin, seconds=seconds, memory_mb=memory_mb))


class BlockingEpisode:
    """The ``ep`` of a plain ``def`` environment function; see ``Episode``."""

    def __init__(self, episode: Episode, wait: Wait) -> None:
        self.split = episode.split
        self.index = episode.index
        self.member = episode.member
        self.config = episode.config
        self._episode = episode
        self._wait = wait

    @property
    def task(self) -> Any:
        """The row of the data; an environment may assign to it what its score is to see."""
        return self._episode.task

    @task.setter
    def task(self, task: Any) -> None:
        self._episode.task = task

    @property
    def rng(self) -> Random:
        """Draws the task: the same for every member of a group."""
        return self._episode.rng

    @property
    def noise(self) -> Random:
        """Differs between the members of a group."""
        return self._episode.noise

    @property
    def sandbox(self) -> BlockingSandbox:
        """Runs code that a model wrote: ``ep.sandbox.python(code, stdin=…)``."""
        return BlockingSandbox(self._episode.sandbox, self._wait)

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

    def demonstrate(self, conversation: object, agent: str = DEFAULT_AGENT) -> float:
        """Show the agent a whole conversation, whose replies are trained on; see ``Episode.demonstrate``."""
        return self._wait(self._episode.demonstrate(conversation, agent))

    def endpoint(self, agent: str = DEFAULT_AGENT) -> Endpoint:
        """An address at which any program finds the model; see ``Episode.endpoint``."""
        return self._wait(self._episode.endpoint(agent))

    def log(self, **values: object) -> None:
        """Put numbers or short texts next to the episode; they are charted, never trained."""
        self._episode.log(**values)

    def reward(self, value: float, agent: str = EVERY_AGENT, *, name: str = "", final: bool = False) -> None:
        """Add to an agent's reward now, on top of what the function returns; see ``Episode.reward``."""
        self._episode.reward(value, agent, name=name, final=final)
