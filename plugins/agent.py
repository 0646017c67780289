"""An agent: one append-only conversation with the model.

Flows in: what the environment says. Flows out: asks that carry only what is new, and the model's replies. The system
prompt and the tools are fixed when the agent is made, and no call edits history: what the model was trained on is
exactly what it saw.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .messages import Answer, Ask, Message, Reply
from .tools import Tool, result_of, schema_of

_ROLES = ("user", "assistant", "tool")


class Agent:
    """Made by ``ep.agent(name, system=…, tools=[…])``."""

    def __init__(self, name: str, answer: Answer, system: str | None = None, tools: Sequence[Tool] = ()) -> None:
        self.name = name
        self.system = system
        self.tools = {tool.__name__: tool for tool in tools}
        self._schemas = {tool.__name__: schema_of(tool) for tool in tools}
        self._answer = answer
        self._spoke = False
        self._asking = False

    async def ask(
        self,
        content: str | Sequence[Message] = "",
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
    ) -> Reply:
        """Say something new and wait for the model's reply."""
        if self._asking:
            raise RuntimeError(f"agent {self.name!r} was asked again before it had replied")
        messages = (Message("user", content),) if isinstance(content, str) else _checked(content)
        tools: tuple[dict[str, object], ...] = ()
        if not self._spoke:
            tools = tuple(self._schemas.values())
            if self.system is not None:
                messages = (Message("system", self.system), *messages)
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        ask = Ask(self.name, messages, tools, max_tokens, stops)
        self._spoke = self._asking = True
        try:
            return await self._answer(ask)
        finally:
            self._asking = False

    async def act(
        self,
        content: str | Sequence[Message] = "",
        *,
        max_turns: int = 8,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
    ) -> Reply:
        """Let the model use its tools until it answers without a call, at most ``max_turns`` replies."""
        news = content
        for turn in range(1, max_turns + 1):
            reply = await self.ask(news, max_tokens=max_tokens, stop=stop)
            if not reply.tool_calls or turn == max_turns:
                return reply
            news = [
                Message("tool", await result_of(call, self.tools, self._schemas), name=call.name)
                for call in reply.tool_calls
            ]
        raise ValueError(f"max_turns must be at least 1, not {max_turns}")


def _checked(messages: Sequence[Message]) -> tuple[Message, ...]:
    if isinstance(messages, (Message, dict)) or not isinstance(messages, Iterable):
        raise TypeError(f"ask takes a text or a list of messages, not {type(messages).__name__}")
    for message in messages:
        if not isinstance(message, Message):
            raise TypeError(f"ask takes a text or messages, not {type(message).__name__}")
        if message.role not in _ROLES:
            raise ValueError(f"a new message is of {', '.join(_ROLES)}, not {message.role!r}; system= is set once")
    return tuple(messages)
