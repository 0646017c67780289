"""A rough time is a range that holds what its parts say, and grows with everything that takes time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from marlaas.engine.models.memory import BaseSpeed
from marlaas.engine.queue.submission.estimate import READING, SHORT, EpisodeShape, rough_time
from marlaas.engine.spec.task import EvalSpec, SamplingSpec, TaskSpec

SPEC = TaskSpec(
    "bio",
    "sums",
    "new",
    steps=10,
    sampling=SamplingSpec(max_tokens=32, max_episode_tokens=256),
    eval=EvalSpec(prompts=0, every=0),
)
SHAPE = EpisodeShape(8, asks=2.0, prompt=60.0, seconds=0.64)
SPEED = BaseSpeed(sampled=1000.0, trained=500.0)


def test_by_hand() -> None:
    """640 episodes of two turns: short replies have 2 x 8 tokens, whole ones 2 x 32."""
    time = rough_time(SPEC, SHAPE, SPEED)
    own = 0.64 / 64
    least = 640 * (16 + 60) / 500.0
    assert time.least == pytest.approx(least), "training takes the longer, and sampling goes on beside it"
    assert time.most == pytest.approx(640 * ((64 + 60 / READING) / 1000 + own + (64 + 60) / 500))
    assert time.least < time.seconds < time.most and (time.played, time.runs) == (8, 0)
    assert SHORT * 32 * 2 == 16


@pytest.mark.parametrize(
    ("spec", "shape", "speed"),
    [
        (replace(SPEC, steps=20), SHAPE, SPEED),
        (SPEC, replace(SHAPE, asks=4.0), SPEED),
        (SPEC, replace(SHAPE, prompt=120.0), SPEED),
        (SPEC, replace(SHAPE, seconds=60.0), SPEED),
        (SPEC, SHAPE, BaseSpeed(500.0, 250.0)),
        (replace(SPEC, eval=EvalSpec(prompts=64, every=2)), SHAPE, SPEED),
    ],
)
def test_what_takes_more_time_makes_it_longer(spec: TaskSpec, shape: EpisodeShape, speed: BaseSpeed) -> None:
    assert rough_time(spec, shape, speed).most > rough_time(SPEC, SHAPE, SPEED).most


def test_replies_end_where_an_episode_may_have_no_more_tokens() -> None:
    spec = replace(SPEC, sampling=SamplingSpec(max_tokens=32, max_episode_tokens=70))
    time = rough_time(spec, SHAPE, SPEED)
    assert time.most == pytest.approx(640 * ((10 + 60 / READING) / 1000 + 0.01 + 70 / 500))


def test_an_evaluation_trains_nothing() -> None:
    spec = replace(SPEC, kind="eval", versions=("base",), eval=EvalSpec(prompts=64))
    time = rough_time(spec, SHAPE, SPEED)
    assert time.training == 0.0 and time.most == pytest.approx(64 * ((64 + 60 / READING) / 1000 + 0.01))
