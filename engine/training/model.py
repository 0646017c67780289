"""What the trainer asks of a model: batches of trained tokens, their log-probabilities, and the adapters' gradients.

Two models do it: ``decoder`` computes the Qwen and Llama families itself, ``peft_model`` everything else through
transformers and PEFT. Knows nothing of losses, optimizers or files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from torch import Tensor

from .bank import PolicyMemory
from .layout import Layout
from .protocol import TrainGroup
from .tokens import TrainedTokens


class Batch(Protocol):
    """Part of some groups that is computed in one go; what else it holds is the model's own affair."""

    @property
    def trained(self) -> TrainedTokens:
        """The tokens to train on, of whole sequences."""


B = TypeVar("B", bound=Batch)

Criterion = Callable[[Tensor, Tensor], Tensor]
"""Log-probabilities and entropies (N,) of a batch's trained tokens → gradient of the loss by the former, (N,)."""


class Model(Protocol[B]):
    """A frozen base and room for one policy's adapter at a time."""

    @property
    def vocabulary(self) -> int:
        """Number of token ids, V."""

    def layout(self, rank: int) -> Layout:
        """Where an adapter of this rank keeps its matrices."""

    def mount(self, memory: PolicyMemory) -> None:
        """Make the next calls use this policy's weights; needed again after they have changed."""

    def unmount(self) -> None:
        """Forget which policy is mounted."""

    def batches(self, groups: Iterable[TrainGroup]) -> Iterator[B]:
        """Everything that has trained tokens, in order and within the memory that a pass may take."""

    def logprobs(self, batch: B, temperature: float, adapted: bool = True) -> Tensor:
        """Of the trained tokens, (N,), without a gradient; of the base alone unless ``adapted``."""

    def differentiate(self, batch: B, temperature: float, criterion: Criterion) -> None:
        """Run forward, ask ``criterion``, run backward: adds to the mounted policy's gradient."""
