"""The whole decoder: packed tokens in, log-probabilities of the trained ones out, and the adapters' gradients back.

Reads from top to bottom. Knows nothing of losses, optimizers or files.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...base.arithmetic import rms_norm, rms_norm_backward
from ...base.tensors import Base
from .attention import AttentionPlan
from .head import HeadTape, token_scores, token_scores_backward
from .layer import Layer, LayerTape, Normed, Place, backward, forward
from .packing import PackedBatch


@dataclass(frozen=True)
class Tape:
    """What the backward pass over a batch needs."""

    place: Place
    layers: tuple[LayerTape, ...]
    norm: Normed
    head: HeadTape


def run(
    base: Base, layers: tuple[Layer, ...], batch: PackedBatch, temperature: float, keep: bool
) -> tuple[Tensor, Tensor, Tape]:
    """Log-probabilities and entropies, (N,) each, of the trained tokens; the tape is empty unless to be ``kept``."""
    place, device = _place(base, batch), base.embedding.device
    x = base.embedding[torch.from_numpy(batch.tokens).to(device)]  # (T, H)
    tapes = []
    for number, layer in enumerate(layers):
        x, tape = forward(layer, x, place, last=number == len(layers) - 1)
        if keep:
            tapes.append(tape)
    hidden, *norm = rms_norm(x, base.norm, base.eps)  # (M, H)
    source, targets = (torch.from_numpy(indices).to(device) for indices in (batch.source, batch.trained.targets))
    logp, entropy, head = token_scores(hidden, base.head, source, targets, temperature)
    return logp, entropy, Tape(place, tuple(tapes), Normed(*norm), head)


def run_backward(base: Base, layers: tuple[Layer, ...], tape: Tape, grad: Tensor, temperature: float) -> None:
    """Add the adapters' gradients for ``grad`` (N,), the loss by the log-probabilities."""
    by_hidden = token_scores_backward(grad, tape.head, base.head, temperature)
    by_x = rms_norm_backward(by_hidden, tape.norm.unit, tape.norm.inverse, base.norm)
    for number in reversed(range(len(layers))):
        last = number == len(layers) - 1
        by_x = backward(layers[number], by_x, tape.layers[number], tape.place, last=last)


def _place(base: Base, batch: PackedBatch) -> Place:
    device = base.embedding.device
    angles = torch.from_numpy(batch.positions).to(device)[:, None] * base.frequencies  # (T, D/2)
    return Place(
        AttentionPlan.of(batch, base.heads, device),
        angles.cos().float()[:, None],
        angles.sin().float()[:, None],
        torch.from_numpy(batch.needed).to(device),
    )
