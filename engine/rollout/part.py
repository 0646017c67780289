"""A stretch of a conversation in which tokens only grow: what becomes one trajectory.

Prompts and replies flow in as tokens, arrays and the turns that people read flow out. Knows no template and no sampler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..environments.protocol import Message
from ..types import Span, Trajectory
from .spoken import Spoken


@dataclass
class Part:
    """Tokens, which of them were sampled, and with which log-probabilities."""

    tokens: list[int] = field(default_factory=list)
    turns: list[tuple[str, str]] = field(default_factory=list)
    """(role, text) of what was said here for the first time."""
    spans: list[Span] = field(default_factory=list)
    _mask: list[int] = field(default_factory=list)
    _logprobs: list[float] = field(default_factory=list)

    def hear(self, tokens: Sequence[int], messages: Sequence[Message]) -> None:
        """Append what was given to the model."""
        self.turns.extend((message.role, message.content) for message in messages)
        self._append(tokens, [0.0] * len(tokens), 0)

    def speak(self, tokens: Sequence[int], logprobs: Sequence[float], version: int, spoken: Spoken) -> None:
        """Append what a policy version sampled."""
        self.spans.append(Span(len(self.tokens), len(self.tokens) + len(tokens), version))
        if spoken.thinking:
            self.turns.append(("thinking", spoken.thinking))
        if spoken.shown or not spoken.thinking:
            self.turns.append(("assistant", spoken.shown))
        self._append(tokens, logprobs, 1)

    def trajectory(self, agent: str, reward: float | None, cut: bool) -> Trajectory:
        """The arrays, up to the end of the last reply."""
        end = self.spans[-1].stop if self.spans else 0
        return Trajectory(
            agent=agent,
            tokens=np.array(self.tokens[:end], dtype=np.int32),
            mask=np.array(self._mask[:end], dtype=np.uint8),
            logprobs=np.array(self._logprobs[:end], dtype=np.float32),
            spans=tuple(self.spans),
            reward=reward,
            cut=cut,
        )

    def _append(self, tokens: Sequence[int], logprobs: Sequence[float], sampled: int) -> None:
        self.tokens.extend(tokens)
        self._mask.extend([sampled] * len(tokens))
        self._logprobs.extend(logprobs)
