"""What the engine asks of environments, and what it gets back: text and rewards, never tokens.

An episode runs in the plugin's process and asks the model through the engine. Everything here crosses a JSON wire from
code that may be broken or hostile, so it arrives validated or not at all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from marlaas.engine.types import EpisodeStatus, Failure, Split


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


@dataclass(frozen=True)
class Reply:
    """What the model said."""

    text: str
    finish: str
    """stop, length or tool"""
    turn: int
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True)
class EpisodeSpec:
    """Which episode to run."""

    split: Split
    index: int
    seed: int
    """The run's seed; 0 for the eval split, so that every run is measured on the same instances."""
    member: int
    config: dict[str, Any] = field(default_factory=dict)
    timeout: float | None = None
    """Seconds; None takes the environment's own."""


@dataclass(frozen=True)
class EpisodeOutcome:
    """How an episode ended. Only ``ok`` has rewards."""

    status: EpisodeStatus
    rewards: dict[str, float] = field(default_factory=dict)
    """By agent name, finite."""
    parts: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float | str] = field(default_factory=dict)
    invalid: str = ""
    """Why the environment called the agent's play invalid; such an episode is ``ok`` and has a reward."""
    failure: Failure | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Parameter:
    """One typed keyword parameter of an environment function."""

    name: str
    type: str
    """int, float, str, bool or json"""
    default: Any
    required: bool = False


@dataclass(frozen=True)
class EnvironmentInfo:
    """One environment of one plugin, as the screen shows it."""

    name: str
    """"plugin/environment"."""
    version: str
    """Content hash of the version that serves; empty when none ever did."""
    state: str
    """ready, loading, broken (no version serves) or stale (an older version serves, the newest edit is broken)"""
    parameters: tuple[Parameter, ...] = ()
    failure: Failure | None = None
    """Why the newest edit does not serve."""
    path: str = ""
    description: str = ""


Answer = Callable[[Ask], Awaitable[Reply]]
"""How the engine answers one episode's asks."""
