"""The model that a trainer runs: its inputs as tensors, and how large a pass may be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..models.memory import PASS_BYTES
from .memory import Layout, PolicyMemory
from .protocol import TrainGroup, TrainSequence

PASSES, POLICIES = 0.6, 0.3
"""Shares of the memory that the base leaves. The rest is for steps, and for gaps between blocks."""


def limit(device: str, memory: int) -> None:
    """Limit this process to ``memory`` bytes of a card; 0 is no limit."""
    where = torch.device(device)
    if where.type == "cuda" and memory:
        total = torch.cuda.get_device_properties(where).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, memory / total), where)


def pass_room(device: str) -> int:
    """Bytes that a pass may take, once the base is loaded."""
    free = _free(device)
    return PASS_BYTES if free is None else int(PASSES * free)


def policy_room(device: str) -> int:
    """Bytes for policies on the device; 0 if no limit is known."""
    free = _free(device)
    return 0 if free is None else int(POLICIES * free)


def _free(device: str) -> int | None:
    where = torch.device(device)
    if where.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(where)
    allowed = int(torch.cuda.get_per_process_memory_fraction(where) * total)
    return max(0, min(free + _cached(where), allowed - torch.cuda.memory_allocated(where)))


def _cached(where: torch.device) -> int:
    return torch.cuda.memory_reserved(where) - torch.cuda.memory_allocated(where)


Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class TrainedTokens:
    """N tokens in order of sequence and position."""

    targets: Ints
    """(N,): the tokens."""
    behaviour: Floats
    """(N,): their log-probabilities when they were sampled."""
    advantage: Floats
    """(N,)"""
    sequence: Ints
    """(N,): which sequence each belongs to, ascending from 0."""
    share: Floats
    """(N,): 1 / (trained tokens of the episode), the token's weight in a mean over the episode."""
    proximal: Floats | None = None
    """(N,): their log-probabilities before the step's first update; None in the first epoch."""


@dataclass(frozen=True)
class Lesson:
    """The trained tokens of one policy in a batch."""

    policy: int
    tokens: slice
    groups: tuple[int, ...]
    sequences: tuple[TrainSequence, ...]
    trained: TrainedTokens


def lesson_of(policy: int, first: int, groups: Sequence[int], sequences: Sequence[TrainSequence]) -> Lesson:
    """The lesson whose trained tokens begin at ``first`` of the batch."""
    trained = trained_tokens_of(sequences)
    return Lesson(policy, slice(first, first + len(trained.targets)), tuple(groups), tuple(sequences), trained)


def trained_tokens_of(sequences: Sequence[TrainSequence]) -> TrainedTokens:
    """Collect the tokens that the masks mark."""
    places = [np.flatnonzero(sequence.mask) for sequence in sequences]
    counts = [len(own) for own in places]
    pairs = list(zip(sequences, places, strict=True))
    whole = [sequence.episode_tokens or count for sequence, count in zip(sequences, counts, strict=True)]
    proximal = [s.proximal[own] for s, own in pairs if s.proximal is not None]
    return TrainedTokens(
        targets=np.concatenate([s.tokens[own] for s, own in pairs]).astype(np.int64),
        behaviour=np.concatenate([s.logprobs[own] for s, own in pairs]).astype(np.float32),
        advantage=np.concatenate([_advantages(s, own) for s, own in pairs]),
        sequence=np.repeat(np.arange(len(sequences)), counts),
        share=np.repeat((1.0 / np.array(whole)).astype(np.float32), counts),
        proximal=np.concatenate(proximal).astype(np.float32) if proximal else None,
    )


def _advantages(sequence: TrainSequence, own: Ints) -> Floats:
    if sequence.advantages is None:
        return np.full(len(own), sequence.advantage, dtype=np.float32)
    return sequence.advantages[own]


def count_trained(group: TrainGroup) -> int:
    """The number of sampled tokens in all sequences of a group."""
    return sum(int(np.count_nonzero(sequence.mask)) for sequence in group.sequences)


class Batch(Protocol):
    """A part of some groups that is computed in one pass.

    Models: ``decoder`` for the Qwen and Llama families, ``peft_model`` for others.
    """

    @property
    def lessons(self) -> tuple[Lesson, ...]:
        """The trained tokens of each policy in the batch, as whole sequences, in order of policies."""


B = TypeVar("B", bound=Batch)

Groups = Iterable[TrainGroup]


@dataclass(frozen=True)
class Slopes:
    """The gradient of a loss, all on the host."""

    logp: Tensor
    """(N,): by the log-probabilities of the batch's trained tokens."""
    entropy: Tensor | None = None
    """(N,): by the entropies of their distributions; None if no policy has a bonus."""


Criterion = Callable[[Tensor, Tensor], Slopes]
"""Log-probabilities and entropies (N,) of a batch's trained tokens → gradient of the loss by both; all on the host."""


class Model(Protocol[B]):
    """A frozen base with the adapters of one policy at a time, or of several if it ``mixes``."""

    @property
    def vocabulary(self) -> int:
        """Number of token ids, V."""

    @property
    def mixes(self) -> bool:
        """True if several policies may be mounted at the same time."""

    def layout(self, rank: int) -> Layout:
        """The layout of an adapter of this rank."""

    def mount(self, policies: Sequence[PolicyMemory]) -> None:
        """Use these policies' weights from now on; call it again after they have changed."""

    def unmount(self) -> None:
        """Forget which policies are mounted."""

    def batches(self, jobs: Sequence[Groups]) -> Iterator[B]:
        """Batches of all sequences with trained tokens, in order; ``jobs`` are the groups of each mounted policy."""

    def logprobs(self, batch: B, temperatures: tuple[float, ...], adapted: bool = True) -> Tensor:
        """Log-probabilities of the trained tokens, (N,), on the host, without a gradient; by the base only unless
        ``adapted``.
        """

    def differentiate(self, batch: B, temperatures: tuple[float, ...], criterion: Criterion) -> None:
        """Run forward, call ``criterion``, run backward; adds to the mounted policies' gradients."""

    def shrink(self) -> bool:
        """Halve the memory of passes over the newest batches; False if that would change nothing."""
