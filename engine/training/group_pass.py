"""Forward and backward of some groups, and forward alone: where model and loss meet.

A policy in memory and checked groups flow in; their gradient is added to the policy's, the sums over their tokens flow
out. Knows nothing of optimizers, files or other policies.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from time import perf_counter

import numpy as np

from ..types import Logprobs, Tokens
from .bank import PolicyMemory
from .group_check import check_group
from .model import B, Model
from .policy_loss import PolicyLoss
from .protocol import GroupStats, PolicyConfig, TrainGroup, TrainSequence
from .tokens import count_trained


def add_gradient(model: Model[B], memory: PolicyMemory, groups: Sequence[TrainGroup]) -> GroupStats:
    """Add the gradient of ``groups`` (checked before) to the policy's and return their statistics."""
    begun = perf_counter()
    config, loss = memory.config, PolicyLoss(memory.config)
    model.mount(memory)
    for batch in model.batches(group for group in groups if has_signal(group, config)):
        base = model.logprobs(batch, config.temperature, adapted=False) if config.kl > 0.0 else None
        model.differentiate(batch, config.temperature, partial(loss.gradient, batch.trained, base))
    tokens = sum(count_trained(group) for group in groups)
    memory.tokens += tokens
    return GroupStats(
        tokens=tokens,
        loss=loss.loss,
        entropy=loss.entropy,
        clipped=loss.clipped,
        gap_sum=loss.gap_sum,
        gap_max=loss.gap_max,
        kl=loss.kl,
        seconds=perf_counter() - begun,
        measured=loss.measured,
    )


def has_signal(group: TrainGroup, config: PolicyConfig) -> bool:
    """Whether the group's gradient can differ from zero."""
    return config.kl > 0.0 or any(sequence.advantage != 0.0 for sequence in group.sequences)


def sequence_logprobs(
    model: Model[B], memory: PolicyMemory, tokens: Tokens, start: int, temperature: float
) -> Logprobs:
    """Log-probabilities, float32 (T-start,), of ``tokens[start:]``; raises ``ValueError`` on bad input."""
    if not 1 <= start <= len(tokens):
        raise ValueError(f"Scoring can start at 1 to {len(tokens)} in this sequence, not at {start}.")
    if not temperature > 0.0:
        raise ValueError(f"The temperature is {temperature}, but must be above 0.")
    mask = np.zeros(len(tokens), dtype=np.uint8)
    mask[start:] = 1
    group = TrainGroup(0, (TrainSequence(tokens, mask, np.zeros(len(tokens), dtype=np.float32), 0.0),))
    check_group(group, model.vocabulary)
    model.mount(memory)
    scored = [model.logprobs(batch, temperature).cpu().numpy() for batch in model.batches([group])]
    return np.concatenate(scored) if scored else np.zeros(0, dtype=np.float32)
