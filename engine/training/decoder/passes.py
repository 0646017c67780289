"""Passes of the whole decoder: log-probabilities of a packed batch's trained tokens, and the adapters' gradients.

Knows nothing of losses, optimizers or files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from torch import Tensor

from ...base import Base, Layer, rms_norm, rms_norm_backward
from .compute import Compute
from .head import HeadTape, entropies_backward, token_logprobs, token_scores, token_scores_backward
from .layer import LayerTape, Normed, PassLayout, backward, backward_again, forward, forward_only
from .linear import Linear
from .packing import PackedBatch, Places, Spans

Temperatures = tuple[float, ...]
"""The temperature of each policy that has a span in the batch."""


class Keep(Enum):
    """What a forward pass keeps for the backward pass."""

    NOTHING = auto()
    """Nothing: there is no backward pass."""
    INPUTS = auto()
    """The input of each layer, which is computed once more in the backward pass (Chen et al., arXiv 1604.06174): a
    third more work."""
    ALL = auto()


@dataclass(frozen=True)
class Tape:
    """What the backward pass over a batch needs."""

    place: PassLayout
    layers: tuple[LayerTape | Tensor, ...]
    """The tape of each layer, or its input (T, H)."""
    norm: Normed
    head: HeadTape
    temperature: float | Tensor


@dataclass(frozen=True)
class Decoding:
    """What a pass computes with: the base, its layers, and the kernels."""

    base: Base
    compute: Compute
    layers: Sequence[Layer[Linear]]
    """The layers, with the mounted adapters or without."""


def logprobs(over: Decoding, batch: PackedBatch, temperatures: Temperatures) -> Tensor:
    """Log-probabilities (N,) of the trained tokens."""
    places = Places.of(batch, over.compute.device)
    hidden, _, _, _ = _hidden_states(over, batch, places, Keep.NOTHING)
    temperature = _temperature(batch, temperatures, hidden)
    return token_logprobs(hidden, over.base.head, places.source, places.targets, temperature, over.compute.tile)


def run(over: Decoding, batch: PackedBatch, temperatures: Temperatures, keep: Keep) -> tuple[Tensor, Tensor, Tape]:
    """Log-probabilities and entropies, (N,) each, of the trained tokens; and the tape, as far as it is kept."""
    places = Places.of(batch, over.compute.device)
    hidden, place, kept, norm = _hidden_states(over, batch, places, keep)
    temperature = _temperature(batch, temperatures, hidden)
    logp, entropy, head = token_scores(
        hidden, over.base.head, places.source, places.targets, temperature, over.compute.tile
    )
    return logp, entropy, Tape(place, kept, norm, head, temperature)


def run_backward(over: Decoding, tape: Tape, grad: Tensor, by_entropy: Tensor | None = None) -> None:
    """Add the adapters' gradients for ``grad`` (N,), the loss by the log-probabilities, and that by the entropies."""
    base, layers = over.base, over.layers
    by_hidden = token_scores_backward(grad, tape.head, base.head, tape.temperature)
    if by_entropy is not None:
        by_hidden += entropies_backward(by_entropy, tape.head, base.head, tape.temperature, over.compute.tile)
    by_x = rms_norm_backward(by_hidden, tape.norm.unit, tape.norm.inverse, base.norm)
    for number in reversed(range(len(layers))):
        over.compute.settle()
        kept, last = tape.layers[number], number == len(layers) - 1
        if isinstance(kept, Tensor):
            by_x = backward_again(layers[number], by_x, kept, tape.place, last, over.compute.kept.rows)
        else:
            by_x = backward(layers[number], by_x, kept, tape.place, last)


def _hidden_states(
    over: Decoding, batch: PackedBatch, places: Places, keep: Keep
) -> tuple[Tensor, PassLayout, tuple[LayerTape | Tensor, ...], Normed]:
    """The inputs of the output head, (M, H), and what is kept for the backward pass."""
    base, layers, place = over.base, over.layers, _place(over, batch, places)
    x = base.embedding[places.tokens].float()  # (T, H)
    kept: list[LayerTape | Tensor] = []
    for number, layer in enumerate(layers):
        over.compute.settle()
        last = number == len(layers) - 1
        if keep is Keep.ALL:
            x, tape = forward(layer, x, place, last)
            kept.append(tape)
            continue
        if keep is Keep.INPUTS:
            kept.append(x)
        x = forward_only(layer, x, place, last, over.compute.kept.rows)
    hidden, *norm = rms_norm(x, base.norm, base.eps)  # (M, H)
    return hidden, place, tuple(kept), Normed(*norm)


def _temperature(batch: PackedBatch, temperatures: Temperatures, hidden: Tensor) -> float | Tensor:
    """The temperature if all policies have the same, else that of each needed place, (M, 1)."""
    if len(set(temperatures)) == 1:
        return temperatures[0]
    result = hidden.new_ones(len(hidden), 1)
    for span, temperature in zip(batch.needed_spans, temperatures, strict=True):
        result[span] = temperature
    return result


def _place(over: Decoding, batch: PackedBatch, places: Places) -> PassLayout:
    angles = places.positions[:, None] * over.base.frequencies  # (T, D/2)
    return PassLayout(
        over.compute.attention(places, over.base.heads),
        angles.cos().float()[:, None],
        angles.sin().float()[:, None],
        places.needed,
        over.base.eps,
        Spans(batch.spans, places.stops.int()),
        Spans(batch.needed_spans, places.needed_stops.int()),
    )
