"""The whole decoder: packed tokens in, log-probabilities of the trained ones out, and the adapters' gradients back.

Reads from top to bottom. Knows nothing of losses, optimizers or files.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

import torch
from torch import Tensor

from ...base.arithmetic import rms_norm, rms_norm_backward
from ...base.tensors import Base, Layer
from .attention import AttentionPlan
from .head import HeadTape, token_logprobs, token_scores, token_scores_backward
from .layer import LayerTape, Normed, Place, backward, forward
from .linear import Linear
from .packing import PackedBatch

Temperatures = tuple[float, ...]
"""Of each policy that has a span in the batch."""


class Keep(Enum):
    """What a forward pass leaves for its way back."""

    NOTHING = auto()
    """There is no way back."""
    INPUTS = auto()
    """Of each layer: it is computed once more on the way back (Chen et al., arXiv 1604.06174), a third more work."""
    ALL = auto()


@dataclass(frozen=True)
class Tape:
    """What the backward pass over a batch needs."""

    place: Place
    layers: tuple[LayerTape | Tensor, ...]
    """Of each layer its tape, or its input (T, H)."""
    norm: Normed
    head: HeadTape
    temperature: float | Tensor


def logprobs(base: Base, layers: tuple[Layer[Linear], ...], batch: PackedBatch, temperatures: Temperatures) -> Tensor:
    """Log-probabilities (N,) of the trained tokens."""
    hidden, _, _, _ = _hidden_states(base, layers, batch, Keep.NOTHING)
    return token_logprobs(hidden, base.head, *_tokens(base, batch), _temperature(batch, temperatures, hidden))


def run(
    base: Base, layers: tuple[Layer[Linear], ...], batch: PackedBatch, temperatures: Temperatures, keep: Keep
) -> tuple[Tensor, Tensor, Tape]:
    """Log-probabilities and entropies, (N,) each, of the trained tokens; and the tape, as far as it is kept."""
    hidden, place, kept, norm = _hidden_states(base, layers, batch, keep)
    temperature = _temperature(batch, temperatures, hidden)
    logp, entropy, head = token_scores(hidden, base.head, *_tokens(base, batch), temperature)
    return logp, entropy, Tape(place, kept, norm, head, temperature)


def run_backward(base: Base, layers: tuple[Layer[Linear], ...], tape: Tape, grad: Tensor) -> None:
    """Add the adapters' gradients for ``grad`` (N,), the loss by the log-probabilities."""
    by_hidden = token_scores_backward(grad, tape.head, base.head, tape.temperature)
    by_x = rms_norm_backward(by_hidden, tape.norm.unit, tape.norm.inverse, base.norm)
    for number in reversed(range(len(layers))):
        kept, last = tape.layers[number], number == len(layers) - 1
        if isinstance(kept, Tensor):
            _, kept = forward(layers[number], kept, tape.place, last)
        by_x = backward(layers[number], by_x, kept, tape.place, last)


def _hidden_states(
    base: Base, layers: tuple[Layer[Linear], ...], batch: PackedBatch, keep: Keep
) -> tuple[Tensor, Place, tuple[LayerTape | Tensor, ...], Normed]:
    """What the head reads, (M, H), and what is kept of the way there."""
    place = _place(base, batch)
    x = base.embedding[torch.from_numpy(batch.tokens).to(base.embedding.device)]  # (T, H)
    kept: list[LayerTape | Tensor] = []
    for number, layer in enumerate(layers):
        given = x
        x, tape = forward(layer, given, place, last=number == len(layers) - 1)
        if keep is not Keep.NOTHING:
            kept.append(given if keep is Keep.INPUTS else tape)
        del tape  # else two would be held while the next layer computes
    hidden, *norm = rms_norm(x, base.norm, base.eps)  # (M, H)
    return hidden, place, tuple(kept), Normed(*norm)


def _tokens(base: Base, batch: PackedBatch) -> tuple[Tensor, Tensor]:
    """Of the trained ones, which needed place predicts each, and which they are; (N,) each."""
    source, targets = (torch.from_numpy(indices) for indices in (batch.source, batch.targets))
    return source.to(base.embedding.device), targets.to(base.embedding.device)


def _temperature(batch: PackedBatch, temperatures: Temperatures, hidden: Tensor) -> float | Tensor:
    """The one that all have, or that of each needed place, (M, 1)."""
    if len(set(temperatures)) == 1:
        return temperatures[0]
    result = hidden.new_ones(len(hidden), 1)
    for span, temperature in zip(batch.needed_spans, temperatures, strict=True):
        result[span] = temperature
    return result


def _place(base: Base, batch: PackedBatch) -> Place:
    device = base.embedding.device
    angles = torch.from_numpy(batch.positions).to(device)[:, None] * base.frequencies  # (T, D/2)
    return Place(
        AttentionPlan.of(batch, base.heads, device),
        angles.cos().float()[:, None],
        angles.sin().float()[:, None],
        torch.from_numpy(batch.needed).to(device),
        base.eps,
        batch.spans,
        batch.needed_spans,
    )
