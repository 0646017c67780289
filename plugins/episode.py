"""One episode, as the environment function sees it: its draw of the task, its agents, its log.

Flows in: which instance to play, and someone who answers asks. Flows out: what was logged and earned. Members of a
group share the instance (``rng``, ``task``) and differ in ``noise``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from random import Random
from typing import Any

from .agent import Agent
from .messages import Answer, Message, Reply
from .rewards import DEFAULT_AGENT, finite
from .tools import Tool

_LONGEST_LOG_TEXT = 1000


class Episode:
    """The ``ep`` of an environment function."""

    def __init__(
        self,
        answer: Answer,
        *,
        split: str = "train",
        index: int = 0,
        seed: int = 0,
        member: int = 0,
        config: Mapping[str, Any] | None = None,
        task: Any = None,
    ) -> None:
        self.split = split
        self.index = index
        self.config = dict(config or {})
        self.task = task
        self.agents: dict[str, Agent] = {}
        self.logged: dict[str, float | str] = {}
        self.earned: dict[str, float] = {}
        self._answer = answer
        # Every run and every tenant is measured on the same held-out instances: their draw knows no run seed.
        self._draw = f"{0 if split == 'eval' else seed}/{split}/{index}"
        self._member = member

    @cached_property
    def rng(self) -> Random:
        """Draws the task: the same for every member of a group."""
        return Random(self._draw)

    @cached_property
    def noise(self) -> Random:
        """Differs between the members of a group."""
        return Random(f"{self._draw}/{self._member}")

    def agent(self, name: str = DEFAULT_AGENT, *, system: str | None = None, tools: Sequence[Tool] = ()) -> Agent:
        """The agent of that name; ``system`` and ``tools`` are fixed when it is first named."""
        known = self.agents.get(name)
        if known is not None:
            if system not in (None, known.system) or any(known.tools.get(tool.__name__) is not tool for tool in tools):
                raise ValueError(f"the system prompt and tools of agent {name!r} are fixed: make it once")
            return known
        if not isinstance(name, str) or not 0 < len(name) <= 64:
            raise ValueError(f"an agent's name is a text of at most 64 characters, not {name!r}")
        made = self.agents[name] = Agent(name, self._answer, system, tools)
        return made

    async def ask(
        self,
        content: str | Sequence[Message] = "",
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
    ) -> Reply:
        """Ask the only agent of a single-agent environment."""
        return await self.agent().ask(content, max_tokens=max_tokens, stop=stop)

    def log(self, **values: object) -> None:
        """Put numbers or short texts beside the episode; they are charted, never trained."""
        for name, value in values.items():
            number = float(value) if hasattr(type(value), "__float__") else math.nan  # type: ignore[arg-type]
            self.logged[name] = number if math.isfinite(number) else str(value)[:_LONGEST_LOG_TEXT]

    def reward(self, value: float, agent: str = DEFAULT_AGENT) -> None:
        """Add to an agent's reward now, on top of what the function returns."""
        self.earned[agent] = self.earned.get(agent, 0.0) + finite(value, "a reward")
