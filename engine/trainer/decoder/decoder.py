"""The decoder: passes over packed sequences, with or without recomputation."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ...devices.machine import Precision
from ...models.config import BaseConfig
from ...models.find import BaseModel
from ...models.kernels import rms_norm, rms_norm_backward
from ...models.memory import (
    EXACT,
    HALVED,
    MOST_ON_CARD,
    MOST_TOKENS,
    PASS_BYTES,
    TILED,
    TILED_HALVED,
    Budget,
    Kept,
    kept_on_card,
)
from ...models.tensors import Base, HeadShape, Layer, Stacked, load
from ...trajectories import Tokens
from ..memory import AdamState, Layout, PolicyMemory
from ..model import Criterion, Groups, pass_room
from ..protocol import TrainGroup, TrainSequence
from .attention import Attention, FusedAttention, TiledAttention
from .layer import (
    CACHED,
    WIDE,
    HeadTape,
    LayerTape,
    Normed,
    PassLayout,
    Tile,
    backward,
    backward_again,
    entropies_backward,
    forward,
    forward_only,
    token_logprobs,
    token_scores,
    token_scores_backward,
)
from .linear import Linear, Matrix, adapted, loaded_as, quantising
from .packing import PackedBatch, Places, packed_batches, places_within


def nothing() -> None:
    """Does nothing, for a fixed number of threads."""


@dataclass(frozen=True)
class Compute:
    """The kernels, types and sizes for a device."""

    device: torch.device
    precision: Precision
    tile: Tile
    most: int
    """Tokens beyond which a batch gains nothing."""
    kept: Kept
    writes: torch.dtype = torch.float32
    """The type of products with the base and with adapters."""
    stacked: bool = False
    """Computes several policies' adapters in batched products."""
    tiled: int = 0
    """Tokens from which attention is computed in tiles; 0: never."""
    settle: Callable[[], None] = nothing
    """Called before each layer, when the number of threads may change."""

    def attention(self, places: Places, heads: HeadShape) -> Attention:
        longest = places.prefixes.shape[1] + places.rows.shape[2]
        kind = TiledAttention if self.tiled and longest >= self.tiled else FusedAttention
        return kind.of(places, heads, loaded_as(self.precision))


def compute_on(device: str, precision: Precision = "f32") -> Compute:
    """Choose for a torch device. On a processor small tiles stay in the cache; on a card each call is expensive."""
    where = torch.device(device)
    if where.type != "cpu":
        return for_card(where, precision)
    if precision == "f32":
        return Compute(where, precision, CACHED, MOST_TOKENS, EXACT, tiled=TILED)
    return Compute(where, precision, CACHED, MOST_TOKENS, HALVED, torch.bfloat16, tiled=TILED_HALVED)


def for_card(device: torch.device, precision: Precision) -> Compute:
    """Kernels for a card; they run on any device, for tests."""
    return Compute(device, precision, WIDE, MOST_ON_CARD, kept_on_card(precision), stacked=True)


Temperatures = tuple[float, ...]
Keep = Literal["nothing", "inputs", "all"]
"""What a forward pass keeps for the backward pass; with the ``inputs`` of layers these are computed again (Chen et al.,
arXiv 1604.06174), which is a third more work."""


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
    """Passes over packed batches with a base and the layers of some policies."""

    base: Base
    compute: Compute
    layers: Sequence[Layer[Linear]]

    def logprobs(self, batch: PackedBatch, temperatures: Temperatures) -> Tensor:
        """Log-probabilities (N,) of the trained tokens."""
        places = Places.of(batch, self.compute.device)
        hidden, *_ = self._hidden_states(batch, places, "nothing")
        temperature = _temperature(batch, temperatures, hidden)
        return token_logprobs(hidden, self.base.head, places.source, places.targets, temperature, self.compute.tile)

    def forward(self, batch: PackedBatch, temperatures: Temperatures, keep: Keep) -> tuple[Tensor, Tensor, Tape]:
        """Log-probabilities and entropies, (N,) each, of the trained tokens; and the tape."""
        places = Places.of(batch, self.compute.device)
        hidden, place, kept, norm = self._hidden_states(batch, places, keep)
        temperature = _temperature(batch, temperatures, hidden)
        logp, entropy, head = token_scores(
            hidden, self.base.head, places.source, places.targets, temperature, self.compute.tile
        )
        return logp, entropy, Tape(place, kept, norm, head, temperature)

    def backward(self, tape: Tape, grad: Tensor, by_entropy: Tensor | None) -> None:
        """Add the adapters' gradients; ``grad`` (N,) is that of the loss by the log-probabilities."""
        base, layers = self.base, self.layers
        by_hidden = token_scores_backward(grad, tape.head, base.head, tape.temperature)
        if by_entropy is not None:
            by_hidden += entropies_backward(by_entropy, tape.head, base.head, tape.temperature, self.compute.tile)
        by_x = rms_norm_backward(by_hidden, tape.norm.unit, tape.norm.inverse, base.norm)
        for number in reversed(range(len(layers))):
            self.compute.settle()
            kept, last = tape.layers[number], number == len(layers) - 1
            if isinstance(kept, Tensor):
                by_x = backward_again(layers[number], by_x, kept, tape.place, last, self.compute.kept.rows)
            else:
                by_x = backward(layers[number], by_x, kept, tape.place, last)

    def _hidden_states(
        self, batch: PackedBatch, places: Places, keep: Keep
    ) -> tuple[Tensor, PassLayout, tuple[LayerTape | Tensor, ...], Normed]:
        """The inputs of the output head, (M, H), and what is kept for the backward pass."""
        base, compute = self.base, self.compute
        angles = places.positions[:, None] * base.frequencies  # (T, D/2)
        turns = angles.cos().float()[:, None], angles.sin().float()[:, None]
        attention = compute.attention(places, base.heads)
        place = PassLayout(attention, *turns, places.needed, base.eps, batch.spans, batch.needed_spans)
        x = base.embedding[places.tokens].float()  # (T, H)
        kept: list[LayerTape | Tensor] = []
        for number, layer in enumerate(self.layers):
            compute.settle()
            last = number == len(self.layers) - 1
            if keep == "all":
                x, tape = forward(layer, x, place, last)
                kept.append(tape)
                continue
            if keep == "inputs":
                kept.append(x)
            x = forward_only(layer, x, place, last, compute.kept.rows)
        hidden, *norm = rms_norm(x, base.norm, base.eps)  # (M, H)
        return hidden, place, tuple(kept), Normed(*norm)


def _temperature(batch: PackedBatch, temperatures: Temperatures, hidden: Tensor) -> float | Tensor:
    """The temperature if all policies have the same, else per needed place, (M, 1)."""
    if len(set(temperatures)) == 1:
        return temperatures[0]
    result = hidden.new_ones(len(hidden), 1)
    for span, temperature in zip(batch.needed_spans, temperatures, strict=True):
        result[span] = temperature
    return result


SMALLEST = 16
"""A batch of fewer tokens is not made smaller: a single sequence usually has more."""


class Decoder:
    """Implements ``model.Model`` over a base's tensors, in passes of ``room`` bytes unless a sequence needs more.

    Raises ``BaseModelError`` if the precision of ``compute`` needs a library that is not installed.
    """

    def __init__(self, config: BaseConfig, base: Base, compute: Compute, room: int = PASS_BYTES) -> None:
        self._config, self._modules = config, base.modules
        self._budget = self._now = Budget(room, most=compute.most, kept=compute.kept)
        plain: tuple[Layer[Linear], ...] = tuple(_Linears(base.layers, compute))
        self.plain = Decoding(replace(base, layers=()), compute, plain)
        self._over = self.plain
        self._mounted: tuple[AdamState, ...] = ()
        self._largest = 0

    @classmethod
    def of(cls, base: BaseModel, compute: Compute | None = None, room: int = PASS_BYTES) -> Decoder:
        """Load a folder's weights; raises ``BaseModelError`` if it cannot be read.

        With ``room`` 0, a pass may take most of what the base leaves of a card.
        """
        compute = compute or compute_on("cpu")
        packed = torch.device("cpu") if compute.precision == "nf4" else None
        tensors = load(base, compute.device, loaded_as(compute.precision), matrices=packed)
        return cls(base.config, tensors, compute, room or pass_room(str(compute.device)))

    @property
    def vocabulary(self) -> int:
        return len(self.plain.base.embedding)

    def layout(self, rank: int, targets: Sequence[str] = ()) -> Layout:
        return Layout.of(self._modules, rank, targets)

    def mount(self, policies: Sequence[PolicyMemory]) -> None:
        states = tuple(policy.optimised for policy in policies)
        if len(states) == len(self._mounted) and all(map(operator.is_, states, self._mounted)):
            return
        layers = adapted(self.plain.layers, policies, self.plain.compute.stacked)
        self._over, self._mounted = replace(self.plain, layers=layers), states

    def unmount(self) -> None:
        self._over, self._mounted = self.plain, ()

    def batches(self, jobs: Sequence[Groups]) -> Iterator[PackedBatch]:
        jobs = [tuple(groups) for groups in jobs]
        lengths = [len(sequence.tokens) for groups in jobs for group in groups for sequence in group.sequences]
        longest = max(lengths, default=0)
        on_processor = self.plain.compute.device.type == "cpu"
        budget = self._now = self._budget.modest(self._config, longest) if on_processor else self._budget
        keeping, again = budget.tokens(self._config), budget.most_tokens(self._config)
        self._largest = 0
        for batch in packed_batches(jobs, places_within(keeping), places_within(again)):
            self._largest = max(self._largest, len(batch.tokens))
            yield batch

    def keeps_all(self, batch: PackedBatch) -> bool:
        return self._now.keeps_all(self._config, len(batch.tokens))

    def shrink(self) -> bool:
        if self._budget.most <= SMALLEST:
            return False
        self._budget = self._budget.below(self._config, self._largest)
        return True

    @torch.no_grad()
    def logprobs(self, batch: PackedBatch, temperatures: Temperatures, adapted: bool = True) -> Tensor:
        return (self._over if adapted else self.plain).logprobs(batch, temperatures).cpu()

    @torch.no_grad()
    def differentiate(self, batch: PackedBatch, temperatures: Temperatures, criterion: Criterion) -> None:
        logp, entropy, tape = self._over.forward(batch, temperatures, "all" if self.keeps_all(batch) else "inputs")
        slopes = criterion(logp.cpu(), entropy.cpu())
        grad = slopes.logp.to(logp.device, non_blocking=True)
        by_entropy = None if slopes.entropy is None else slopes.entropy.to(logp.device, non_blocking=True)
        self._over.backward(tape, grad, by_entropy)


@torch.no_grad()
def score_by_layers(base: BaseModel, tokens: Tokens) -> Tensor:
    """Log-probabilities (T - 1,) of ``tokens[1:]`` by the base only, with one layer in memory at a time."""
    compute = compute_on("cpu")
    tensors = load(base, compute.device, one_by_one=True)
    mask = np.ones(len(tokens), np.uint8)
    mask[0] = 0
    sequence = TrainSequence(tokens, mask, np.zeros(len(tokens), np.float32), 1.0)
    (batch,) = packed_batches([(TrainGroup(0, (sequence,)),)], len(tokens))
    return Decoding(replace(tensors, layers=()), compute, _Linears(tensors.layers, compute)).logprobs(batch, (1.0,))


class _Linears(Sequence[Layer[Linear]]):
    """The base's layers as passes compute with them, converted on access."""

    def __init__(self, layers: Sequence[Layer[Stacked]], compute: Compute) -> None:
        self._layers = layers
        self._matrix: Callable[[Tensor], Matrix] = partial(_dense, compute)
        if compute.precision == "nf4":
            self._matrix = quantising(compute.device, compute.writes)

    def __len__(self) -> int:
        return len(self._layers)

    def __getitem__(self, number: Any) -> Any:
        return self._layers[number].map(self._linear)

    def _linear(self, stacked: Stacked) -> Linear:
        inputs = stacked.weight.shape[1]
        return Linear(stacked.modules, stacked.outputs, inputs, self._matrix(stacked.weight), stacked.bias)


def _dense(compute: Compute, weight: Tensor) -> Matrix:
    return Matrix(weight.to(compute.device), compute.writes)
