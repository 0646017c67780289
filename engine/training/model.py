"""What the trainer asks of a model: batches of trained tokens, their log-probabilities, and the adapters' gradients.

Two models do it: ``decoder`` computes the Qwen and Llama families itself, ``peft_model`` everything else through
transformers and PEFT. Knows nothing of losses, optimizers or files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

from torch import Tensor

from .layout import Layout
from .policy_memory import PolicyMemory
from .protocol import TrainGroup
from .tokens import Lesson


class Batch(Protocol):
    """Part of some groups that is computed in one go; what else it holds is the model's own affair."""

    @property
    def lessons(self) -> tuple[Lesson, ...]:
        """What each policy that has tokens in it is to learn from them: whole sequences, in order of policies."""


B = TypeVar("B", bound=Batch)

Groups = Iterable[TrainGroup]
"""Of one policy."""
Criterion = Callable[[Tensor, Tensor], Tensor]
"""Log-probabilities and entropies (N,) of a batch's trained tokens → gradient of the loss by the former, (N,).

All on the host: losses are a few operations on each token, and there they wait for no device, one by one."""


class Model(Protocol[B]):
    """A frozen base and room for the adapters of one policy at a time, or of several where it ``mixes``."""

    @property
    def vocabulary(self) -> int:
        """Number of token ids, V."""

    @property
    def mixes(self) -> bool:
        """Whether several policies may be mounted at a time."""

    def layout(self, rank: int) -> Layout:
        """Where an adapter of this rank keeps its matrices."""

    def mount(self, policies: Sequence[PolicyMemory]) -> None:
        """Make the next calls use these policies' weights; needed again after they have changed."""

    def unmount(self) -> None:
        """Forget which policies are mounted."""

    def batches(self, jobs: Sequence[Groups]) -> Iterator[B]:
        """Everything that has trained tokens, in order and within the memory that a pass may take.

        ``jobs`` are the groups of each mounted policy.
        """

    def logprobs(self, batch: B, temperatures: tuple[float, ...], adapted: bool = True) -> Tensor:
        """Of the trained tokens, (N,), on the host, without a gradient; of the base alone unless ``adapted``.

        ``temperatures`` are those of the mounted policies, in order.
        """

    def differentiate(self, batch: B, temperatures: tuple[float, ...], criterion: Criterion) -> None:
        """Run forward, ask ``criterion``, run backward: adds to the mounted policies' gradients."""

    def shrink(self) -> bool:
        """Halve what the passes over the newest batches might take; False where that would change nothing."""
