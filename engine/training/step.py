"""One optimizer step, and what a policy's configuration must hold for it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ..errors import AdapterError
from ..spec import published
from .group_pass import Gradients
from .inputs import PolicyConfig
from .memory.policy_memory import AdamState, PolicyMemory, adamw, clip

# Groups are accumulated undivided; the sum is divided once, at the step, so the update does not depend on the order of
# groups. The learning rate is a pure function of the configuration: a rise over ``warmup`` steps, then constant, or a
# fall to 0 after step ``steps``, linear or half a cosine (arXiv 1608.03983, equation 5, without restarts), as in
# transformers.


@dataclass(frozen=True)
class Step:
    """The state of a policy after a step, before it is adopted."""

    optimised: AdamState
    grad_norm: float
    """Norm of the gradient before clipping; the largest of the step's updates."""
    divisor: float
    learning_rate: float


def make_step(gradients: Gradients, memory: PolicyMemory) -> Step:
    """Make all updates of the step. One with a zero gradient changes nothing, not even the count of updates.

    Each epoch after the first repeats the passes over all groups with a signal, at the current weights. Raises
    ``AdapterError``, with the evidence, if a loss or a gradient is not finite.
    """
    config = memory.config
    shared, rate = divisor(config, memory.tokens), learning_rate(config, memory.version)
    optimised, norm = _update(memory, memory.optimised, memory.gradient / shared, rate)
    for _ in range(1, config.epochs):
        ahead = PolicyMemory.holding(config, memory.layout, optimised, version=memory.version)
        ahead.reference = memory.reference
        gradients([(ahead, memory.rehearsal)])
        optimised, further = _update(ahead, optimised, ahead.gradient / shared, rate)
        norm = max(norm, further)
    return Step(optimised, norm, shared, rate)


def _update(memory: PolicyMemory, optimised: AdamState, gradient: Tensor, rate: float) -> tuple[AdamState, float]:
    config = memory.config
    gradient, norm = clip(gradient, config.clip_norm)
    if memory.fault or not np.isfinite(norm):
        raise AdapterError(
            f"The {'loss' if memory.fault else 'gradient'} is not finite, so step {memory.version + 1} was not made"
            f" ({memory.fault or f'its norm is {norm}, of {memory.tokens} trained tokens'}).",
            "A smaller learning rate usually helps; resume from the last committed step.",
        )
    if norm == 0.0:  # momentum and weight decay would still move the adapter, though nothing was learnt
        return optimised, norm
    return adamw(optimised, gradient, rate, config.betas, config.weight_decay, config.epsilon), norm


def divisor(config: PolicyConfig, tokens: int) -> float:
    """The divisor of a step of ``tokens`` trained tokens, including those of groups without signal."""
    return float(max(1, tokens)) if published(config.loss).mean == "token" else config.denominator


SCHEDULES = ("constant", "linear", "cosine")


def learning_rate(config: PolicyConfig, step: int) -> float:
    """The rate of the step that makes version ``step + 1``; ``step`` counts from 0.

    The first step of a warm-up over n steps has 1/n of the full rate, the n-th the full rate. The last step of the run
    still has a rate above 0.
    """
    if step < config.warmup:
        return config.learning_rate * (step + 1) / config.warmup
    if config.schedule == "constant":
        return config.learning_rate
    done = min(1.0, (step - config.warmup) / max(1, config.steps - config.warmup))
    left = 1.0 - done if config.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return config.learning_rate * left


def check_config(config: PolicyConfig) -> None:
    """Raise ``ValueError``, naming the field and what is allowed, unless every value makes sense."""
    for name, word, known in (
        ("schedule", config.schedule, SCHEDULES),
        ("importance", config.importance, published(config.loss).importance),
    ):
        if word not in known:
            raise ValueError(f"{name} is {word!r}, but with the loss {config.loss} must be one of {', '.join(known)}.")
    (beta1, beta2), floor = config.betas, config.importance_floor
    rules = (
        ("rank", config.rank, config.rank >= 1, "at least 1"),
        ("alpha", config.alpha, config.alpha > 0, "above 0"),
        ("learning_rate", config.learning_rate, config.learning_rate >= 0, "0 or more"),
        ("betas[0]", beta1, 0 <= beta1 < 1, "from 0 to below 1"),
        ("betas[1]", beta2, 0 <= beta2 < 1, "from 0 to below 1"),
        ("epsilon", config.epsilon, config.epsilon > 0, "above 0"),
        ("weight_decay", config.weight_decay, config.weight_decay >= 0, "0 or more"),
        ("warmup", config.warmup, config.warmup >= 0, "0 (off) or more"),
        ("steps", config.steps, config.schedule == "constant" or config.steps > 0, "above 0 for a rate that falls"),
        ("epochs", config.epochs, config.epochs >= 1, "at least 1"),
        ("clip_norm", config.clip_norm, config.clip_norm >= 0, "0 (off) or more"),
        ("importance_cap", config.importance_cap, config.importance_cap > 0, "above 0"),
        ("importance_floor", floor, 0 <= floor <= config.importance_cap, "from 0 to importance_cap"),
        ("clip_dual", config.clip_dual or 1.0, (config.clip_dual or 1.0) >= 1, "at least 1"),
        ("geometric_cap", config.geometric_cap, config.geometric_cap >= 1, "at least 1"),
        ("clip_low", config.clip_low or 0.0, 0 <= (config.clip_low or 0.0) <= 1, "from 0 to 1"),
        ("clip_high", config.clip_high or 0.0, (config.clip_high or 0.0) >= 0, "0 or more"),
        ("kl", config.kl, config.kl >= 0, "0 (off) or more"),
        ("kl", config.kl, not config.reference or config.kl > 0, "above 0 with a reference"),
        ("entropy", config.entropy, config.entropy >= 0, "0 (off) or more"),
        ("denominator", config.denominator, config.denominator > 0, "above 0"),
        ("temperature", config.temperature, config.temperature > 0, "above 0"),
        ("seed", config.seed, config.seed >= 0, "0 or more"),
    )
    for name, value, holds, allowed in rules:
        if not holds or not math.isfinite(value):
            raise ValueError(f"{name} is {value}, but must be {allowed}.")
