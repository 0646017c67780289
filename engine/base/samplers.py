"""The kinds of sampler, a row for each: what it reads, what it can, and how much of it is usual."""

from __future__ import annotations

from dataclasses import dataclass

from .precision import BFLOAT16, GGUF, PRECISIONS


@dataclass(frozen=True)
class SamplerTraits:
    """What decides about a kind of sampler, wherever it runs."""

    weights: tuple[str, ...] = ()
    """The values of ``weights`` under [rollout] that are about it, beside ``auto``."""
    gguf: bool = False
    """Whether it reads the base from a GGUF. Others read the base itself, on a processor in float32 or bfloat16."""
    cards: bool = True
    """Whether it computes on cards."""
    repeats: bool = True
    """Whether it repeats its bits on a processor, whatever else it is asked."""
    conversations: int = 128
    """The most of them where the settings have no number."""


SAMPLERS = {
    "vllm": SamplerTraits(repeats=False),
    "llama.cpp": SamplerTraits(weights=(*PRECISIONS, GGUF), gguf=True),
    "torch": SamplerTraits(weights=(BFLOAT16,), cards=False, conversations=384),
}
"""By the names that the settings have; on cards those that come first are preferred.

A pass of the torch sampler costs little more with many rows than with few, and a conversation that keeps its slot while
its environment waits for a tool is not read again: with 32 tasks of slow tools 384 took half the processor time of 128,
and more gained nothing.
"""
