"""Checks that a policy's configuration can be trained."""

from __future__ import annotations

import math

from ..spec import published
from .inputs import PolicyConfig
from .step import SCHEDULES


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
