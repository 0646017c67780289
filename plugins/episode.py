"""One episode, as the environment function sees it: its draw of the task, its agents, its log.

Members of a group share the instance (``rng``, ``task``) and differ in ``noise``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from random import Random
from typing import Any

from .agent import Agent, check_new
from .conversations import conversation_of
from .messages import Answer, Ask, Endpoint, Message, Reply
from .rewards import DEFAULT_AGENT, EVERY_AGENT, Skip, finite
from .sandbox import Sandbox
from .tools import Apart, Tool, ToolRunner

_LONGEST_LOG_TEXT = 1000
_MOST_PAID, _LONGEST_NAME = 1000, 128

Settle = Callable[[str, float], None]
"""Is told of an agent's whole reward as soon as that is final."""
Opens = Callable[[], Awaitable[Endpoint]]
"""Gives the episode its address."""


async def _nowhere() -> Endpoint:
    raise RuntimeError("no endpoint is served here: only the engine serves one, where it plays episodes")


class Episode:
    """The ``ep`` of an environment function.

    ``split`` is ``"train"``, ``"eval"`` or ``"test"``, ``index`` the number of the instance in it: from 0 without an
    end, as what is drawn again comes from a million ahead. ``member`` is the episode's number in its group. ``config``
    has the settings by name, ``task`` the row of the data, None if there is none; an environment may assign to it what
    its score is to see.
    """

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
        queueing: Callable[[], AbstractContextManager[None]] = nullcontext,
        declared: Sequence[str] = (),
        apart: Apart | None = None,
        starved: Callable[[], None] = lambda: None,
        settle: Settle | None = lambda agent, reward: None,
        opens: Opens = _nowhere,
    ) -> None:
        """``declared``: the agents that there may be, any if it is empty. ``apart``: runs plain tools; None if
        they run at once. ``settle``: called for each reward that is final before the episode ends; None if there can
        be none, because rewards are given elsewhere.

        ``queueing``: entered while the episode waits for a place in the sandbox, which is not counted as its own time.
        ``starved``: called if a program in the sandbox had too little of the machine to be judged. ``opens``: called
        for the first of its endpoints.
        """
        self.split = split
        self.index = index
        self.config = dict(config or {})
        self.task = task
        self.agents: dict[str, Agent] = {}
        self.logged: dict[str, float | str] = {}
        self.earned: dict[str, float] = {}
        self.paid: list[dict[str, str | int | float]] = []
        """Rewards for turns, for people to read: one entry for each agent paid, with its number of replies by then."""
        self.final: dict[str, float] = {}
        """Whole rewards of the agents that have spoken for the last time."""
        self._answer = answer
        self._opens = opens
        self._opened: Endpoint | None = None
        self._settle = settle
        self._answering: Counter[str] = Counter()
        """Asks in progress, by agent."""
        self._queueing = queueing
        self._starved = starved
        self._tool_runner = ToolRunner(apart)
        self._declared = declared
        # Every run and every tenant is measured on the same held-out instances, so their draw ignores the run's seed.
        self._draw = f"{seed if split == 'train' else 0}/{split}/{index}"
        self.member = member

    @property
    def payees(self) -> tuple[str, ...]:
        """Who may be paid: the declared agents, whether or not they have spoken, and the agents made in the episode."""
        return tuple(dict.fromkeys((*self._declared, *self.agents)))

    @cached_property
    def rng(self) -> Random:
        """Draws the task: the same for every member of a group, and outside of the train split for every run."""
        return Random(self._draw)

    @cached_property
    def noise(self) -> Random:
        """Differs between the members of a group: for dice that an agent throws, not for what it is asked."""
        return Random(f"{self._draw}/{self.member}")

    @cached_property
    def sandbox(self) -> Sandbox:
        """Runs code that a model wrote: ``await ep.sandbox.python(code, stdin=…)``."""
        return Sandbox(self._queueing, self._starved)

    def agent(self, name: str = DEFAULT_AGENT, *, system: str | None = None, tools: Sequence[Tool] = ()) -> Agent:
        """The agent of that name; ``system`` and ``tools`` are fixed when it is first named.

        A tool is a function, plain or ``async``, with typed parameters and a docstring. Those that an episode calls run
        one after the other; a plain one in a thread, so that it may block. Raises ``ValueError`` for
        another system prompt or tool than at first and for an agent that is not declared, ``TypeError`` for a tool
        whose parameters have no usable type.
        """
        known = self.agents.get(name)
        if known is not None:
            if system not in (None, known.system) or any(known.tools.get(tool.__name__) is not tool for tool in tools):
                raise ValueError(f"the system prompt and tools of agent {name!r} are fixed: make it once")
            return known
        check_new(name, self.agents, self._declared)
        made = self.agents[name] = Agent(
            name, self._answered, system, tools, self.agents, self._declared, self._tool_runner
        )
        return made

    async def ask(
        self,
        content: str | Sequence[Message] = "",
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
    ) -> Reply:
        """Ask the only agent of a single-agent environment: ``Agent.ask`` of the agent called ``"agent"``."""
        return await self.agent().ask(content, max_tokens=max_tokens, stop=stop)

    async def demonstrate(self, conversation: object, agent: str = DEFAULT_AGENT) -> float:
        """Show the agent a whole conversation, whose replies are trained on as if it had written them.

        ``conversation`` is a list of messages, or a row of data in one of the forms of ``conversations``. Returns what
        the environment may return as its reward: in training 1.0, the weight of the demonstration in the loss; in
        evaluations the mean log-probability of the replies' tokens, which is the held-out loss with its sign changed.

        Raises ``ValueError`` for another form, ``Skip`` for a conversation that is longer than the context,
        ``RuntimeError`` for an agent that has spoken.
        """
        messages, tools = conversation_of(conversation)
        speaker = self.agent(agent)
        speaker.begin()
        reply = await self._answered(Ask(agent, messages, tools, demonstrated=True))
        speaker._turns = reply.turn + 1
        if reply.finish == "length":
            raise Skip(reply.text)
        return 1.0 if self.split == "train" or reply.logprob is None else reply.logprob

    async def endpoint(self, agent: str = DEFAULT_AGENT) -> Endpoint:
        """An address at which any program finds the model, in OpenAI's and Anthropic's interfaces, until the episode
        ends.

        What a program says there is said as ``agent``, whose reward it is trained on. A call that continues with an
        earlier one continues with the same conversation; any other begins a further one of the same agent. While a call
        waits for the model, the environment's time stands still. ``endpoint.environment()`` has the variables by which
        clients find it.

        Raises ``ValueError`` for an agent that is not declared, ``RuntimeError`` if the engine serves no endpoint.
        """
        if agent not in self.agents:
            self.agent(agent)
        if self._opened is None:
            self._opened = await self._opens()
        return self._opened if agent == DEFAULT_AGENT else self._opened.of(agent)

    def called(self, agent: str, replies: int) -> None:
        """A program speaks as an agent, which has given this many replies in its first conversation."""
        self.agent(agent)._turns = replies

    def log(self, **values: object) -> None:
        """Put numbers or short texts next to the episode; they are charted, never trained. The latest of a name counts.

        What is no finite number is kept as its text, at most 1,000 characters of it.
        """
        for name, value in values.items():
            try:
                number = float(value) if hasattr(type(value), "__float__") else math.nan  # type: ignore[arg-type]
            except OverflowError:  # a whole number beyond every float
                number = math.nan
            self.logged[name] = number if math.isfinite(number) else str(value)[:_LONGEST_LOG_TEXT]

    def reward(self, value: float, agent: str = EVERY_AGENT, *, name: str = "", final: bool = False) -> None:
        """Add to an agent's reward now, on top of what the function returns: a reward for a turn.

        It counts with the whole episode's reward, and with ``train.advantage_level = "turn"`` if it was paid: for
        the agent's latest reply and those before it. Of an episode's payments the first 1,000 are kept so, further ones
        count as paid at its end.
        Without ``agent`` it goes to every agent, as a number that is returned does. Under ``name`` the episode's sum of
        such rewards is logged.

        With ``final`` the agent is done: what it has earned so far is its whole reward, which stands whatever becomes
        of the episode, and it can be trained on at once. It is not asked again (``RuntimeError``), and what is returned
        or paid later goes to the other agents.

        Raises ``TypeError`` or ``ValueError`` for what is no finite number, ``ValueError`` for an agent that is done
        already or cannot be (none is named; a score function or a ranking gives the rewards), ``RuntimeError`` for one
        that has not yet replied.
        """
        amount = finite(value, "a reward")
        self._check_open(agent, final)
        self.earned[agent] = self.earned.get(agent, 0.0) + amount
        for payee in self.agents.values():
            mine = agent in (EVERY_AGENT, payee.name) and payee.name not in self.final
            if mine and len(self.paid) < _MOST_PAID:
                self.paid.append(
                    {"agent": payee.name, "turns": payee.own_turns, "amount": amount, "name": str(name)[:_LONGEST_NAME]}
                )
        if name:
            before = self.logged.get(name, 0.0)
            self.logged[name] = amount if isinstance(before, str) else before + amount
        if final and self._settle is not None:
            whole = finite(self.earned[agent] + self.earned.get(EVERY_AGENT, 0.0), f"the reward of {agent!r}")
            self.final[agent] = whole
            self._settle(agent, whole)

    def _check_open(self, agent: str, final: bool) -> None:
        """Raise if an agent cannot be paid, or not for the last time."""
        if agent in self.final:
            raise ValueError(f"the reward of {agent!r} is final already")
        if not final:
            return
        if agent not in self.payees:
            raise ValueError(
                f"a final reward names one of the agents ({', '.join(self.payees) or 'there are none yet'})"
            )
        if self._settle is None:
            raise ValueError("no reward is final where a score function or a ranking gives the rewards")
        if self._answering[agent]:
            raise RuntimeError(f"agent {agent!r} was paid for the last time before it had replied")

    async def _answered(self, ask: Ask) -> Reply:
        if ask.agent in self.final:
            raise RuntimeError(f"agent {ask.agent!r} was asked although its reward is final")
        self._answering[ask.agent] += 1
        try:
            return await self._answer(ask)
        finally:
            self._answering[ask.agent] -= 1


def run_tools_here(episode: Episode) -> None:
    """Run its plain tools on the loop: for what depends on what else runs there, as on the global ``random``."""
    episode._tool_runner.apart = None
