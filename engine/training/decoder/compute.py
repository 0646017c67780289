"""How passes are computed: kernels, types and sizes, chosen once by device and precision.

A processor multiplies fastest what is in its cache, and calls are cheap: attention is in plain products, for long
sequences in tiles, adapters are multiplied policy by policy, the head's tiles are small. On a card each call is
expensive: attention and adapters use its own kernels, tiles and batches are large. The code for cards also runs on a
processor, which is how it is tested.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from ...base import EXACT, HALVED, MOST_ON_CARD, MOST_TOKENS, TILED, TILED_HALVED, HeadShape, Kept, kept_on_card, tiles
from ...devices import Precision
from .attention import Attention, AttentionPlan, FusedAttention, TiledAttention
from .head import CACHED, WIDE, Tile
from .linear import Adapters, Jagged, Kernel, Padded, Stack, Views, grouped, loaded_as, separate
from .packing import Places

Attend = Callable[[Places, HeadShape], Attention]
"""Prepares attention over a batch."""
GROUPED_SINCE = (9, 0)
"""The least compute capability with kernels for grouped products in bfloat16."""


def nothing() -> None:
    """Where the number of threads never changes."""


@dataclass(frozen=True)
class Compute:
    """The kernels, types and sizes for a device."""

    device: torch.device
    precision: Precision
    attention: Attend
    stack: Stack
    tile: Tile
    """Tile of the output head."""
    most: int
    """Tokens beyond which a batch gains nothing."""
    kept: Kept
    """What these kernels keep for the backward pass."""
    writes: torch.dtype = torch.float32
    """The type of products with the base, and of what is computed of them."""
    settle: Callable[[], None] = nothing
    """Called before each layer, where the number of threads may change."""


def compute_on(device: str, precision: Precision = "f32") -> Compute:
    """Choose for a torch device."""
    where = torch.device(device)
    if where.type == "cpu":
        return for_processor(where, precision)
    capability = torch.cuda.get_device_capability(where) if where.type == "cuda" else (0, 0)
    return for_card(where, precision, capability)


def for_processor(device: torch.device, precision: Precision) -> Compute:
    """Kernels for a processor."""
    dtype = loaded_as(precision)
    if precision == "f32":
        attention = by_length(AttentionPlan.of, TILED, dtype)
        kept = EXACT if tiles() else replace(EXACT, scores=sys.maxsize)
        return Compute(device, precision, attention, separate, CACHED, MOST_TOKENS, kept)
    attention = by_length(partial(FusedAttention.of, dtype=dtype), TILED_HALVED, dtype)
    stack = partial(separate, dtype=dtype)
    return Compute(device, precision, attention, stack, CACHED, MOST_TOKENS, HALVED, dtype)


def by_length(short: Attend, since: int, dtype: torch.dtype) -> Attend:
    """``short``, and attention in tiles for batches in which tokens attend to ``since`` tokens or more."""

    def chosen(places: Places, heads: HeadShape) -> Attention:
        long = places.prefixes.shape[1] + places.rows.shape[2] >= since
        return TiledAttention.of(places, heads, dtype) if long and tiles() else short(places, heads)

    return chosen


def for_card(device: torch.device, precision: Precision, capability: tuple[int, int] = (0, 0)) -> Compute:
    """Kernels for a card of this compute capability; they run on any device."""
    dtype = loaded_as(precision)
    jagged = Kernel() if dtype == torch.bfloat16 and capability >= GROUPED_SINCE else Padded()
    return Compute(
        device,
        precision,
        partial(FusedAttention.of, dtype=dtype),
        partial(_stack, jagged),
        WIDE,
        MOST_ON_CARD,
        kept_on_card(precision),
    )


def _stack(jagged: Jagged, modules: Sequence[str], outputs: Sequence[int], policies: Sequence[Views]) -> Adapters:
    """The adapters of some policies; those of a single policy are not grouped."""
    return separate(modules, outputs, policies) if len(policies) == 1 else grouped(jagged, modules, outputs, policies)
