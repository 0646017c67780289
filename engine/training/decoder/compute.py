"""How passes are computed on a device: kernels, types and sizes, chosen once by where and in which precision.

A processor multiplies fastest what lies in its cache, and a call costs it nothing: attention is written out, adapters
are multiplied policy by policy, tiles are small. For a card a call is what costs: attention and adapters go to its own
kernels, tiles and batches are large. Everything that a card does can be computed on a processor, too, which is how it
is tested.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from ...base import EXACT, MOST_ON_CARD, MOST_TOKENS, HeadShape, Kept, kept_on_card
from ...devices import Precision
from .adapters import Adapters, Views, separate
from .attention import Attention, AttentionPlan
from .fused_attention import FusedAttention
from .grouped import Jagged, Kernel, Padded, grouped
from .head import CACHED, WIDE, Tile
from .linear import Stack
from .matrix import loaded_as
from .places import Places

GROUPED_SINCE = (9, 0)
"""Compute capability with kernels for grouped products in bfloat16."""


@dataclass(frozen=True)
class Compute:
    """All that is chosen."""

    device: torch.device
    precision: Precision
    attention: Callable[[Places, HeadShape], Attention]
    stack: Stack
    tile: Tile
    """Of the output head."""
    most: int
    """Tokens of a batch, beyond which it gains nothing."""
    kept: Kept
    """By these kernels, for the way back."""


def compute_on(device: str, precision: Precision = "f32") -> Compute:
    """What suits a torch device."""
    where = torch.device(device)
    if where.type == "cpu":
        return for_processor(where, precision)
    capability = torch.cuda.get_device_capability(where) if where.type == "cuda" else (0, 0)
    return for_card(where, precision, capability)


def for_processor(device: torch.device, precision: Precision) -> Compute:
    """Kernels for a processor."""
    kept, dtype = EXACT if precision == "f32" else kept_on_card(precision), loaded_as(precision)
    attention = AttentionPlan.of if precision == "f32" else partial(FusedAttention.of, dtype=dtype)
    return Compute(device, precision, attention, separate, CACHED, MOST_TOKENS, kept)


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
    """A policy alone has nothing to be grouped with."""
    return separate(modules, outputs, policies) if len(policies) == 1 else grouped(jagged, modules, outputs, policies)
