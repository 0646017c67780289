"""An agent: one append-only conversation with the model, and the branches that leave it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from copy import copy
from itertools import count

from .messages import Answer, Ask, Fork, Message, Reply
from .tools import Tool, ToolRunner, result_here, schema_of

_ROLES = ("user", "assistant", "tool")
_LONGEST_NAME = 64
MOST_AGENTS = 256
"""Most agents of one episode; the engine has no room for more."""


class Agent:
    """Somebody for whom the model speaks. Made by ``ep.agent(name, system=…, tools=[…])``, or by ``fork``."""

    _branch = 0
    _branches: Iterator[int] | None = None
    """Numbers for forks without a name; shared by all of them."""
    _origin: Fork | None = None
    """The history that this agent begins with; None after its first ask."""
    _turns = 0
    """Number of its replies, with those of its history."""
    _inherited = 0
    """Those of another agent, from which it was forked under its own name."""

    def __init__(
        self,
        name: str,
        answer: Answer,
        system: str | None = None,
        tools: Sequence[Tool] = (),
        agents: dict[str, Agent] | None = None,
        declared: Sequence[str] = (),
        tool_runner: ToolRunner | None = None,
    ) -> None:
        """``agents``: those of the episode by name, with named forks. ``declared``: the names that a fork may have, any
        if it is empty. ``tool_runner``: that of the episode."""
        self.name = name
        self.system = system
        self.tools = {tool.__name__: tool for tool in tools}
        self._schemas = {tool.__name__: schema_of(tool) for tool in tools}
        self._answer = answer
        self._agents = {} if agents is None else agents
        self._declared = declared
        self._tool_runner = tool_runner or ToolRunner()
        self._spoke = False
        self._asking = False

    @property
    def turns(self) -> int:
        """Number of its replies, with those before it was forked."""
        return self._turns

    @property
    def own_turns(self) -> int:
        """Number of its replies since it was made, or forked under its name."""
        return self._turns - self._inherited

    async def ask(
        self,
        content: str | Sequence[Message] = "",
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
    ) -> Reply:
        """Say something new and wait for the model's reply.

        ``content`` is a text, said as the user, or a list of messages of any role but system. The reply has at most
        ``max_tokens`` tokens, fewer if the task's limits say so. The first of the texts ``stop`` ends it:
        ``reply.text`` has what stands before, and the conversation and the training keep the stop text.
        Agents and forks may be asked at the same time: ``asyncio.gather(a.ask(…), b.ask(…))``.
        Raises ``TypeError`` or ``ValueError`` for other content, ``RuntimeError`` before the reply to an earlier ask.
        """
        if self._asking:
            raise RuntimeError(f"agent {self.name!r} was asked again before it had replied")
        messages = (Message("user", content),) if isinstance(content, str) else _checked(content)
        tools: tuple[dict[str, object], ...] = ()
        if not self._spoke:
            tools = tuple(self._schemas.values())
            if self.system is not None:
                messages = (Message("system", self.system), *messages)
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        ask = Ask(self.name, messages, tools, max_tokens, stops, self._branch, self._origin)
        self._spoke = self._asking = True
        self._origin = None
        try:
            reply = await self._answer(ask)
            self._turns = reply.turn + 1
            return reply
        finally:
            self._asking = False

    def begin(self) -> None:
        """Raises ``RuntimeError`` if it has spoken before."""
        if self._spoke:
            raise RuntimeError(f"agent {self.name!r} has spoken: an episode shows an agent one demonstration")
        self._spoke = True

    async def act(
        self,
        content: str | Sequence[Message] = "",
        *,
        max_turns: int = 8,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
    ) -> Reply:
        """Let the model use its tools until it answers without a call, and return that answer.

        After ``max_turns`` replies the last one is returned, its calls not carried out. Results, and mistakes in calls,
        go back to the model; ``Invalid`` and ``Skip`` from a tool end the episode. Raises as ``ask`` does.
        """
        news = content
        for turn in range(1, max_turns + 1):
            reply = await self.ask(news, max_tokens=max_tokens, stop=stop)
            if not reply.tool_calls or turn == max_turns:
                return reply
            news = await self.results_of(reply)
        raise ValueError(f"max_turns must be at least 1, not {max_turns}")

    async def results_of(self, reply: Reply) -> list[Message]:
        """Carry out the tool calls of a reply, one after the other: what the agent is to be told next.

        For loops of your own: ``act`` does so by itself. A plain tool runs in a thread, so that it may block.
        ``Invalid`` and ``Skip`` of a tool are raised.
        """
        run = self._tool_runner.result_of
        return [
            Message("tool", await run(call, self.tools, self._schemas), name=call.name) for call in reply.tool_calls
        ]

    def fork(self, name: str | None = None) -> Agent:
        """Another agent with this one's system prompt, tools and history up to now: the only way to branch.

        What was said before is a prompt to the fork: each token is trained on once, in the conversation in which it was
        sampled. Without a ``name`` the fork is the same agent in another conversation, with the same reward and the
        same limit on tokens. With one it is its own agent, with its own reward.

        Raises ``RuntimeError`` if the agent was asked and has not yet replied, ``ValueError`` for a name that is
        taken, too long or not declared.
        """
        if self._asking or (self._spoke and not self._turns):
            raise RuntimeError(f"agent {self.name!r} was forked before it had replied")
        if name is not None and name in self._agents:
            raise ValueError(f"there is an agent {name!r} already: a fork with a name is an agent of its own")
        if name is not None:
            check_new(name, self._agents, self._declared)
        if self._branches is None:
            self._branches = count(1)
        forked = copy(self)
        if self._spoke and self._origin is None:
            forked._origin = Fork(self.name, self._branch, self._turns)
        if name is None:
            forked._branch = next(self._branches)
        else:
            forked.name, forked._branch, forked._branches = name, 0, None
            forked._inherited = self._turns
            self._agents[name] = forked
        return forked


def results_here(agent: Agent, reply: Reply) -> list[Message]:
    """Carry out the calls of plain tools in this thread; ``TypeError`` for a tool that has something to await."""
    return [
        Message("tool", result_here(call, agent.tools, agent._schemas), name=call.name) for call in reply.tool_calls
    ]


def check_name(name: str) -> str:
    """``name`` as it is; ``ValueError`` if an agent cannot be called so."""
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME:
        raise ValueError(f"an agent's name is a text of at most {_LONGEST_NAME} characters, not {name!r:.80}")
    return name


def check_new(name: str, agents: Collection[str], declared: Sequence[str]) -> None:
    """``ValueError`` if an episode of ``agents`` cannot have a further one of that name.

    ``declared``: the names that there may be, any if it is empty.
    """
    check_name(name)
    if declared and name not in declared:
        raise ValueError(f"there is no agent {name!r}: @env declares {', '.join(declared)}")
    if len(agents) >= MOST_AGENTS:
        raise ValueError(f"an episode has at most {MOST_AGENTS} agents")


def _checked(messages: Sequence[Message]) -> tuple[Message, ...]:
    if isinstance(messages, (Message, dict)) or not isinstance(messages, Iterable):
        raise TypeError(f"ask takes a text or a list of messages, not {type(messages).__name__}")
    for message in messages:
        if not isinstance(message, Message):
            raise TypeError(f"ask takes a text or messages, not {type(message).__name__}")
        if message.role not in _ROLES:
            raise ValueError(f"a new message is of {', '.join(_ROLES)}, not {message.role!r}; system= is set once")
    return tuple(messages)
