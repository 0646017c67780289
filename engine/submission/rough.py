"""A rough time for a task on an environment that nobody has trained on: from a few episodes and the speed of the base.

Pure arithmetic. How long replies get is not known before training, so it gives a range: from replies of a quarter of
what is allowed, with sampling and training side by side, to whole ones, with one after the other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..spec import TaskSpec, as_number
from .estimate import TimeEstimate, measured_episodes, trained_episodes, whole_of

SHORT = 0.25
"""Share of the allowed tokens that short replies have."""
READING = 3.0
"""Tokens of a prompt that are read in the time of one that is sampled: 1 to 11 was measured on processors
(``fairness/costs.py``)."""


@dataclass(frozen=True)
class BaseSpeed:
    """What a step of the default task reached on this machine, in tokens a second."""

    sampled: float
    """Sampled by a step's conversations at once."""
    trained: float
    """Trained on, prompts included."""


@dataclass(frozen=True)
class EpisodeShape:
    """What an episode is like, on average of some that were played without a model."""

    episodes: int
    asks: float
    """Asks of all agents."""
    prompt: float
    """Tokens of all prompts and tool results."""
    seconds: float
    """Time of the environment itself."""


def rough_time(spec: TaskSpec, shape: EpisodeShape, speed: BaseSpeed) -> TimeEstimate:
    """Estimate the time of a task whose episodes have this ``shape``; ``least`` and ``most`` are the ends of a range,
    ``seconds`` is its geometric mean."""
    whole = whole_of(spec)
    ends = [_stages(whole, shape, speed, share) for share in (SHORT, 1.0)]
    least, most = max(ends[0]), sum(ends[1])
    rollout, training = (math.sqrt(low * high) for low, high in zip(*ends, strict=True))
    return TimeEstimate(
        math.sqrt(least * most), least, most, runs=0, alike=True, rollout=rollout, training=training,
        played=shape.episodes,
    )  # fmt: skip


def _stages(spec: TaskSpec, shape: EpisodeShape, speed: BaseSpeed, share: float) -> tuple[float, float]:
    """Seconds of sampling and of training, where replies have this share of the allowed tokens."""
    room = max(0.0, as_number(spec.sampling.max_episode_tokens) - shape.prompt)
    replies = max(1.0, min(share * as_number(spec.sampling.max_tokens) * shape.asks, room))
    sampling = (replies + shape.prompt / READING) / speed.sampled
    sampling += shape.seconds / max(1, spec.group_episodes)  # a step's episodes are played at once
    trained = 0 if spec.kind == "eval" else trained_episodes(spec)
    episodes = trained + measured_episodes(spec)
    return episodes * sampling, trained * (replies + shape.prompt) / speed.trained
