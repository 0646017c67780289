"""The protocol of the trainer's model: batches of trained tokens, their log-probabilities, and adapters' gradients.

Two models implement it: ``decoder`` for the Qwen and Llama families, and ``peft_model`` for all others, through
transformers and PEFT. Knows nothing of losses, optimizers or files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from torch import Tensor

from .inputs import TrainGroup
from .memory.layout import Layout
from .memory.policy_memory import PolicyMemory
from .tokens import Lesson


class Batch(Protocol):
    """A part of some groups that is computed in one pass; each model adds what it needs."""

    @property
    def lessons(self) -> tuple[Lesson, ...]:
        """The trained tokens of each policy in the batch, as whole sequences, in order of policies."""


B = TypeVar("B", bound=Batch)

Groups = Iterable[TrainGroup]
"""The groups of one policy."""


@dataclass(frozen=True)
class Slopes:
    """The gradient of a loss, all on the host."""

    logp: Tensor
    """(N,): by the log-probabilities of a batch's trained tokens."""
    entropy: Tensor | None = None
    """(N,): by the entropies of the distributions that they were drawn from; None where no policy has a bonus."""


Criterion = Callable[[Tensor, Tensor], Slopes]
"""Log-probabilities and entropies (N,) of a batch's trained tokens → gradient of the loss by both.

All on the host: losses are a few small operations, which would each wait for a device."""


class Model(Protocol[B]):
    """A frozen base with the adapters of one policy at a time, or of several if it ``mixes``."""

    @property
    def vocabulary(self) -> int:
        """Number of token ids, V."""

    @property
    def mixes(self) -> bool:
        """Whether several policies may be mounted at the same time."""

    def layout(self, rank: int) -> Layout:
        """Where an adapter of this rank keeps its matrices."""

    def mount(self, policies: Sequence[PolicyMemory]) -> None:
        """Make the next calls use these policies' weights; needed again after they have changed."""

    def unmount(self) -> None:
        """Forget which policies are mounted."""

    def batches(self, jobs: Sequence[Groups]) -> Iterator[B]:
        """Batches of all sequences with trained tokens, in order and within the memory that a pass may take.

        ``jobs`` are the groups of each mounted policy.
        """

    def logprobs(self, batch: B, temperatures: tuple[float, ...], adapted: bool = True) -> Tensor:
        """Log-probabilities of the trained tokens, (N,), on the host, without a gradient.

        They are by the base alone unless ``adapted``.

        ``temperatures`` are those of the mounted policies, in order.
        """

    def differentiate(self, batch: B, temperatures: tuple[float, ...], criterion: Criterion) -> None:
        """Run forward, call ``criterion``, run backward; adds to the mounted policies' gradients."""

    def shrink(self) -> bool:
        """Halve the memory that passes over the newest batches may take; False if that would change nothing."""
