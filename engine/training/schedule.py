"""The learning rate of each optimizer step: a pure function of the configuration, so that a restart goes on with it.

A rise over the first ``warmup`` steps, then constant, or a fall to 0 after step ``steps`` that is linear or half a
cosine (arXiv 1608.03983, equation 5, without restarts), as in the schedules of transformers.
"""

from __future__ import annotations

import math

from .protocol import PolicyConfig

SCHEDULES = ("constant", "linear", "cosine")


def learning_rate(config: PolicyConfig, step: int) -> float:
    """The rate of the step that makes version ``step + 1``, where ``step`` counts from 0.

    The first step of a warm-up over n steps has 1/n of the full rate, the n-th the whole. The last step of the run
    still moves: the fall would reach 0 in the step after it.
    """
    if step < config.warmup:
        return config.learning_rate * (step + 1) / config.warmup
    if config.schedule == "constant":
        return config.learning_rate
    done = min(1.0, (step - config.warmup) / max(1, config.steps - config.warmup))
    left = 1.0 - done if config.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return config.learning_rate * left
