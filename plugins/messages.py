"""What an environment and the model say to each other: text in, text out, on both sides of the wire the same shapes.

Nothing here knows of tokens, templates or processes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ToolCall:
    """A call that the model wrote."""

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
class Ask:
    """An agent's question to the model: only what is new since its last turn."""

    agent: str
    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()
    """JSON schemas (OpenAI form), on the agent's first ask only."""
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    """Texts that end the reply, each cut off its text; what the model wrote up to there is trained."""


@dataclass(frozen=True)
class Reply:
    """What the model said."""

    text: str
    """The answer: without the thinking before it, without tool calls. Empty where the length limit cut the thinking."""
    finish: str
    """stop, length or tool"""
    turn: int
    tool_calls: tuple[ToolCall, ...] = ()
    thinking: str = ""
    """What a thinking model wrote between ``<think>`` and ``</think>``; empty where it did not think."""

    def __str__(self) -> str:
        return self.text


Answer = Callable[[Ask], Awaitable[Reply]]
"""Whoever answers an ask: the engine, or a script in a test."""
