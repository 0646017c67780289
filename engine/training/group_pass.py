"""Forward and backward of one group, and forward alone: where model, loss and measurements meet.

A policy in memory and a checked group flow in; the group's gradient is added to the policy's, its statistics flow out.
Knows nothing of optimizers, files or other policies.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from ..types import Logprobs, Tokens
from .bank import PolicyMemory
from .batches import MicroBatch, check_group, micro_batches, trained_tokens
from .lora_model import LoraModel
from .losses import LOSSES, TokenView, kl_to_base, token_logprobs
from .protocol import GroupStats, TrainGroup, TrainSequence


@dataclass
class _Sums:
    """Running sums over a group's micro-batches."""

    measured: int = 0
    loss: float = 0.0
    entropy: float = 0.0
    clipped: int = 0
    gap_sum: float = 0.0
    gap_max: float = 0.0
    kl: float = 0.0


def add_gradient(model: LoraModel, memory: PolicyMemory, group: TrainGroup) -> GroupStats:
    """Add the gradient of ``group`` (checked before) to the policy's and return its statistics."""
    begun = perf_counter()
    sums = _Sums()
    if memory.config.kl > 0.0 or any(sequence.advantage != 0.0 for sequence in group.sequences):
        model.mount(memory.parameters, memory.config.rank, memory.scale)
        for batch in micro_batches(group, model.vocabulary):
            _backward(model, memory, batch, sums)
    return GroupStats(
        tokens=trained_tokens(group),
        loss=sums.loss,
        entropy=sums.entropy,
        clipped=sums.clipped,
        gap_sum=sums.gap_sum,
        gap_max=sums.gap_max,
        kl=sums.kl,
        seconds=perf_counter() - begun,
        measured=sums.measured,
    )


def sequence_logprobs(
    model: LoraModel, memory: PolicyMemory, tokens: Tokens, start: int, temperature: float
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
    model.mount(memory.parameters, memory.config.rank, memory.scale)
    scored = [_logprobs_only(model, batch, temperature).numpy() for batch in micro_batches(group, model.vocabulary)]
    return np.concatenate(scored) if scored else np.zeros(0, dtype=np.float32)


def _backward(model: LoraModel, memory: PolicyMemory, batch: MicroBatch, sums: _Sums) -> None:
    """Run one micro-batch; the gradient of its share of the step's loss is added to the mounted parameters."""
    config = memory.config
    rows = torch.from_numpy(batch.rows)
    logits = model.logits(torch.from_numpy(batch.inputs), rows, torch.from_numpy(batch.columns))  # (N, V)
    logp, entropy = token_logprobs(logits, torch.from_numpy(batch.targets), config.temperature)  # (N,), (N,)
    behaviour = torch.from_numpy(batch.behaviour)
    terms = LOSSES[config.loss](TokenView(logp, behaviour, torch.from_numpy(batch.advantage), rows), config)
    loss = terms.total
    if config.kl > 0.0:
        with model.base_only():
            base_logp = _logprobs_only(model, batch, config.temperature)
        divergence = kl_to_base(logp, base_logp).sum()
        loss = loss + config.kl * divergence
        sums.kl += float(divergence.detach())
    loss = loss / config.denominator
    loss.backward()  # type: ignore[no-untyped-call]
    gap = (logp.detach() - behaviour).abs()
    sums.measured += len(batch.targets)
    sums.loss += float(loss.detach())
    sums.entropy += float(entropy.sum())
    sums.clipped += terms.clipped
    sums.gap_sum += float(gap.sum())
    sums.gap_max = max(sums.gap_max, float(gap.max()))


def _logprobs_only(model: LoraModel, batch: MicroBatch, temperature: float) -> Tensor:
    """Log-probabilities of the trained tokens, (N,), without a gradient."""
    with torch.no_grad():
        rows, columns = torch.from_numpy(batch.rows), torch.from_numpy(batch.columns)
        logits = model.logits(torch.from_numpy(batch.inputs), rows, columns)
        return token_logprobs(logits, torch.from_numpy(batch.targets), temperature)[0]
