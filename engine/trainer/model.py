"""A trainer's model: input tensors, pass sizes."""

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
"""Of the memory left by the base; the rest is for steps and gaps."""


def limit(device: str, memory: int) -> None:
    """Limit this process to ``memory`` bytes; 0: no limit."""
    where = torch.device(device)
    if where.type == "cuda" and memory:
        total = torch.cuda.get_device_properties(where).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, memory / total), where)


def pass_room(device: str) -> int:
    """Bytes for a pass, once the base is loaded."""
    free = _free(device)
    return PASS_BYTES if free is None else int(PASSES * free)


def policy_room(device: str) -> int:
    """Bytes for policies; 0: no known limit."""
    free = _free(device)
    return 0 if free is None else int(POLICIES * free)


def _free(device: str) -> int | None:
    where = torch.device(device)
    if where.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(where)
    allowed = int(torch.cuda.get_per_process_memory_fraction(where) * total)
    used = torch.cuda.memory_allocated(where)
    cached = torch.cuda.memory_reserved(where) - used
    return max(0, min(free + cached, allowed - used))


Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class TrainedTokens:
    """N tokens in order of sequence and position."""

    targets: Ints
    """(N,)"""
    behaviour: Floats
    """(N,), when sampled."""
    advantage: Floats
    """(N,)"""
    sequence: Ints
    """(N,), ascending from 0."""
    share: Floats
    """(N,): 1 / (trained tokens of the episode)."""
    proximal: Floats | None = None
    """(N,): before the step's first update; None in the first epoch."""
    reference: Floats | None = None
    """(N,): by a teacher, as ``TrainSequence.reference``."""


@dataclass(frozen=True)
class Lesson:
    """One policy's trained tokens in a batch."""

    policy: int
    tokens: slice
    groups: tuple[int, ...]
    sequences: tuple[TrainSequence, ...]
    trained: TrainedTokens


def lesson_of(policy: int, first: int, groups: Sequence[int], sequences: Sequence[TrainSequence]) -> Lesson:
    """Trained tokens begin at ``first`` of the batch."""
    trained = trained_tokens_of(sequences)
    return Lesson(policy, slice(first, first + len(trained.targets)), tuple(groups), tuple(sequences), trained)


def trained_tokens_of(sequences: Sequence[TrainSequence]) -> TrainedTokens:
    """The tokens marked by the masks."""
    places = [np.flatnonzero(sequence.mask) for sequence in sequences]
    counts = [len(own) for own in places]
    pairs = list(zip(sequences, places, strict=True))
    whole = [sequence.episode_tokens or count for sequence, count in zip(sequences, counts, strict=True)]
    proximal = [s.proximal[own] for s, own in pairs if s.proximal is not None]
    reference = [s.reference for s in sequences if s.reference is not None]
    return TrainedTokens(
        targets=np.concatenate([s.tokens[own] for s, own in pairs]).astype(np.int64),
        behaviour=np.concatenate([s.logprobs[own] for s, own in pairs]).astype(np.float32),
        advantage=np.concatenate([_advantages(s, own) for s, own in pairs]),
        sequence=np.repeat(np.arange(len(sequences)), counts),
        share=np.repeat((1.0 / np.array(whole)).astype(np.float32), counts),
        proximal=np.concatenate(proximal).astype(np.float32) if proximal else None,
        reference=np.concatenate(reference).astype(np.float32) if reference else None,
    )


def _advantages(sequence: TrainSequence, own: Ints) -> Floats:
    if sequence.advantages is None:
        return np.full(len(own), sequence.advantage, dtype=np.float32)
    return sequence.advantages[own]


def count_trained(group: TrainGroup) -> int:
    """Sampled tokens of a group."""
    return sum(int(np.count_nonzero(sequence.mask)) for sequence in group.sequences)


class Batch(Protocol):
    """Some groups' part in one pass.

    ``decoder``: Qwen and Llama families; ``peft_model``: others.
    """

    @property
    def lessons(self) -> tuple[Lesson, ...]:
        """Whole sequences, in order of policies."""


B = TypeVar("B", bound=Batch)

Groups = Iterable[TrainGroup]


@dataclass(frozen=True)
class Slopes:
    """The gradient of a loss, on the host."""

    logp: Tensor
    """(N,), by log-probabilities."""
    entropy: Tensor | None = None
    """(N,), by entropies; None: no bonus."""


Criterion = Callable[[Tensor, Tensor], Slopes]
"""Log-probabilities and entropies (N,) of trained tokens → gradient of the loss by both; on the host."""


class Model(Protocol[B]):
    """A frozen base with adapters of several policies."""

    @property
    def vocabulary(self) -> int:
        """Number of token ids, V."""

    def layout(self, rank: int, targets: Sequence[str] = ()) -> Layout:
        """An adapter's layout; ``targets`` as for ``targeted``."""

    def mount(self, policies: Sequence[PolicyMemory]) -> None:
        """Use these policies' weights; repeat after changes."""

    def unmount(self) -> None:
        """Forget the mounted policies."""

    def batches(self, jobs: Sequence[Groups]) -> Iterator[B]:
        """In order; ``jobs``: each mounted policy's groups."""

    def logprobs(self, batch: B, temperatures: tuple[float, ...], adapted: bool = True) -> Tensor:
        """(N,), on the host, without gradient; by the base only unless ``adapted``."""

    def differentiate(self, batch: B, temperatures: tuple[float, ...], criterion: Criterion) -> None:
        """Run forward, call ``criterion``, run backward; adds to the policies' gradients."""

    def shrink(self) -> bool:
        """Halve the newest batches' memory; False if nothing changes."""
