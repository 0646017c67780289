"""What an environment and the model say to each other: text in both directions, in the same shapes on both sides.

Nothing here knows of tokens, templates or processes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

MOST_ASKS = 256
"""Asks of one episode that may wait for their replies at the same time."""
DEEPEST = 32
"""Depth of lists and objects in a value that is sent to the engine; authors rarely nest more than four deep."""
MOST_VALUES = 1 << 15
"""Entries of lists and objects in what an author sends to the engine at once."""


@dataclass(frozen=True)
class ToolCall:
    """A call that the model wrote: the tool's name, and its arguments as JSON has them."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Message:
    """One new turn; ``role`` is system, user, assistant or tool."""

    role: str
    content: str
    name: str = ""
    """The tool whose result this is."""
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True)
class Fork:
    """Where a conversation leaves another one: after a reply in it."""

    agent: str
    branch: int
    """Which of that agent's conversations, as in ``Ask.branch``."""
    turns: int
    """How many replies that conversation has up to there, at least 1."""


@dataclass(frozen=True)
class Ask:
    """An agent's question to the model: only what is new since its last turn."""

    agent: str
    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()
    """JSON schemas (OpenAI form), on the agent's first ask only."""
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    """Texts that end the reply. Each is cut off from the text; what the model wrote up to there is trained on."""
    branch: int = 0
    """Which of the agent's conversations: 0 is the first, forks without a name have numbers from 1 on."""
    fork: Fork | None = None
    """The history that this conversation begins with; on the first ask of a fork only."""
    demonstrated: bool = False
    """Whether ``messages`` are a whole conversation, whose replies are given."""


@dataclass(frozen=True, eq=False)
class Reply:
    """What the model said. ``str(reply)`` is its text."""

    text: str
    """The answer: without the thinking before it, without tool calls. Empty where the length limit cut the thinking."""
    finish: str
    """stop: the model ended its turn, or wrote one of the texts of ``stop``; length: the task's limit on tokens, or the
    context, ended it (a conversation without any room left gets an empty text); tool: it called tools"""
    turn: int
    """How many replies the agent had before this one."""
    tool_calls: tuple[ToolCall, ...] = ()
    thinking: str = ""
    """What a thinking model wrote between ``<think>`` and ``</think>``; empty if it did not think."""
    logprob: float | None = None
    """Of a demonstration: the mean log-probability of its tokens, in nats; None where nobody measures it."""

    def __str__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        """Raises ``TypeError`` for a comparison with a text, or anything else that no reply is ever equal to."""
        if isinstance(other, Reply):
            return self is other or _content(self) == _content(other)
        if other is None:
            return False
        raise TypeError(f"a Reply is compared with a {type(other).__name__}, and never equal to it: compare reply.text")

    def __hash__(self) -> int:
        return hash((self.text, self.finish, self.turn))


def _content(reply: Reply) -> tuple[object, ...]:
    return reply.text, reply.finish, reply.turn, reply.tool_calls, reply.thinking


@dataclass(frozen=True)
class Endpoint:
    """Where programs of an episode find its model: OpenAI's and Anthropic's interfaces over HTTP."""

    url: str
    """Base address for clients of OpenAI's interfaces: ``http://127.0.0.1:8777/v1``."""
    key: str
    """Says which episode it is; refused with 410 once that is over."""

    @property
    def anthropic(self) -> str:
        """Base address for clients of Anthropic's interface: the same without ``/v1``."""
        return self.url.removesuffix("/v1")

    def of(self, agent: str) -> Endpoint:
        """The same for another agent of the episode; of the one that plain addresses mean, without its name."""
        return Endpoint(f"{self.anthropic}/e/{quote(agent, safe='')}/v1", self.key)

    def environment(self) -> dict[str, str]:
        """The variables by which clients find it: ``subprocess.run(…, env=os.environ | endpoint.environment())``."""
        return {
            "OPENAI_BASE_URL": self.url,
            "OPENAI_API_BASE": self.url,
            "OPENAI_API_KEY": self.key,
            "ANTHROPIC_BASE_URL": self.anthropic,
            "ANTHROPIC_API_KEY": self.key,
        }


Answer = Callable[[Ask], Awaitable[Reply]]
"""Whoever answers an ask: the engine, or a script in a test."""


def within_limits(value: Any, what: str) -> None:
    """Raise ``ValueError`` for JSON that the engine takes from nobody: nested too deeply, or of too many entries."""
    level, entries = [value], 0
    for _ in range(DEEPEST + 1):
        level = [one for one in level if isinstance(one, (dict, list, tuple))]
        if not level:
            return
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
        entries += len(level)
        if entries > MOST_VALUES:
            raise ValueError(f"{what} has more than {MOST_VALUES} entries.")
    raise ValueError(f"{what} is nested more than {DEEPEST} deep.")
