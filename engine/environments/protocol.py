"""What the engine asks of environments, and what it gets back: text and rewards, never tokens.

An episode runs in the plugin's process and asks the model through the engine. Everything here crosses a JSON wire from
code that may be broken or hostile, so it arrives validated or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from marlaas.plugins.messages import Answer, Ask, Message, Reply, ToolCall
from marlaas.plugins.parameters import Parameter

from ..types import EpisodeStatus, Failure, Split

__all__ = [
    "Answer",
    "Ask",
    "EnvironmentEvent",
    "EnvironmentInfo",
    "EpisodeOutcome",
    "EpisodeSpec",
    "EventKind",
    "Message",
    "Parameter",
    "Reply",
    "ToolCall",
]

EventKind = Literal["loaded", "rejected", "removed", "died", "restarted", "quarantined"]


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
class EnvironmentInfo:
    """One environment of one plugin, as the screen shows it."""

    name: str
    """"plugin/environment"; the plugin's name alone where no version of it ever served."""
    version: str
    """Content hash of the version that serves; empty when none ever did."""
    state: str
    """ready, loading, broken (no version serves) or stale (an older version serves, the newest edit is broken)"""
    parameters: tuple[Parameter, ...] = ()
    failure: Failure | None = None
    """Why the newest edit does not serve."""
    path: str = ""
    description: str = ""


@dataclass(frozen=True)
class EnvironmentEvent:
    """Something that happened to a plugin, for the log and the screen."""

    kind: EventKind
    plugin: str
    version: str
    """Of the content that the event is about; empty where there is none."""
    failure: Failure | None = None
