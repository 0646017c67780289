"""The Qwen and Llama families with adapters, by this package's own forward and backward pass. See ``..model``.

Groups are packed, those of several policies one after the other. All share the base's products, each policy's adapter
is multiplied with its own rows, and gradients are added to its vector directly.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ...base import PASS_BYTES, Base, BaseConfig, BaseModel, Budget, Layer, Stacked, load
from ..adamw import AdamState
from ..memory.layout import Layout
from ..memory.policy_memory import PolicyMemory
from ..model import Criterion, Groups
from ..rooms import pass_room
from .compute import Compute, compute_on
from .linear import Linear, adapted
from .matrix import Dense, Matrix, loaded_as
from .packing import PackedBatch, packed_batches
from .passes import Decoding, Keep, Temperatures, logprobs, run, run_backward

SMALLEST = 16
"""Tokens below which a batch is not made smaller: a single sequence usually has more."""


class Decoder:
    """Implements ``model.Model`` over a base's tensors, in passes of ``room`` bytes unless a sequence needs more.

    Matrices are converted to what ``compute`` says, unless they are so already. Raises ``BaseModelError`` where a
    precision needs a library that is not installed.
    """

    def __init__(self, config: BaseConfig, base: Base, compute: Compute, room: int = PASS_BYTES) -> None:
        self._config, self._modules = config, base.modules
        self._budget = self._now = Budget(room, most=compute.most, kept=compute.kept)
        """What a pass may take, and what the newest batches take of it."""
        keep = _keeping(compute)

        def linear(stacked: Stacked) -> Linear:
            return Linear(stacked.modules, stacked.outputs, keep(stacked.weight), stacked.bias)

        plain: tuple[Layer[Linear], ...] = tuple(layer.map(linear) for layer in base.layers)
        self.plain = Decoding(replace(base, layers=()), compute, plain)
        """The base alone."""
        self._over = self.plain
        self._mounted: tuple[AdamState, ...] = ()
        self._largest = (0, 0)
        """Tokens of the largest of the newest batches, and how many of them a token attends to at most."""

    @classmethod
    def of(cls, base: BaseModel, compute: Compute | None = None, room: int = PASS_BYTES) -> Decoder:
        """Load a folder's weights; raises ``BaseModelError`` where it cannot be read.

        With ``room`` 0, a pass may take most of what the base leaves of a card.
        """
        compute = compute or compute_on("cpu")
        packed = torch.device("cpu") if compute.precision == "nf4" else None  # else it would hold them twice
        tensors = load(base, compute.device, loaded_as(compute.precision), matrices=packed)
        return cls(base.config, tensors, compute, room or pass_room(str(compute.device)))

    @property
    def mixes(self) -> bool:
        """True: several policies may be mounted at the same time."""
        return True

    @property
    def vocabulary(self) -> int:
        """Number of token ids, V."""
        return len(self.plain.base.embedding)

    def layout(self, rank: int) -> Layout:
        """Where an adapter of this rank keeps its matrices."""
        return Layout.of(self._modules, rank)

    def mount(self, policies: Sequence[PolicyMemory]) -> None:
        """Make the next calls use these policies' weights, unless they are mounted and have not changed since."""
        states = tuple(policy.optimised for policy in policies)
        if len(states) == len(self._mounted) and all(map(operator.is_, states, self._mounted)):
            return
        layers = adapted(self.plain.layers, policies, self.plain.compute.stack)
        self._over, self._mounted = replace(self.plain, layers=layers), states

    def unmount(self) -> None:
        """Forget which policies are mounted."""
        self._over, self._mounted = self.plain, ()

    def batches(self, jobs: Sequence[Groups]) -> Iterator[PackedBatch]:
        """Batches of all sequences with trained tokens, in order and within the memory that a pass may take."""
        jobs = [tuple(groups) for groups in jobs]
        lengths = [len(sequence.tokens) for groups in jobs for group in groups for sequence in group.sequences]
        longest = max(lengths, default=0)
        on_processor = self.plain.compute.device.type == "cpu"
        self._now = self._budget.modest(self._config, longest) if on_processor else self._budget
        self._largest = (0, 0)
        for batch in packed_batches(jobs, self._now.tokens(self._config, longest)):
            self._largest = max(self._largest, _size(batch))
            yield batch

    def shrink(self) -> bool:
        """Halve what a pass may take; False where it is so small that this changes nothing."""
        if self._budget.most <= SMALLEST:
            return False
        self._budget = self._budget.below(self._config, *self._largest)
        return True

    @torch.no_grad()
    def logprobs(self, batch: PackedBatch, temperatures: Temperatures, adapted: bool = True) -> Tensor:
        """Log-probabilities of the trained tokens, (N,); by the base alone unless ``adapted``."""
        return logprobs(self._over if adapted else self.plain, batch, temperatures).cpu()

    @torch.no_grad()
    def differentiate(self, batch: PackedBatch, temperatures: Temperatures, criterion: Criterion) -> None:
        """Run forward, call ``criterion``, run backward; adds to the mounted policies' gradients."""
        keep = Keep.ALL if self._now.keeps_all(self._config, *_size(batch)) else Keep.INPUTS
        logp, entropy, tape = run(self._over, batch, temperatures, keep)
        slopes = criterion(logp.cpu(), entropy.cpu())
        grad = slopes.logp.to(logp.device, non_blocking=True)
        by_entropy = None if slopes.entropy is None else slopes.entropy.to(logp.device, non_blocking=True)
        run_backward(self._over, tape, grad, by_entropy)


def _size(batch: PackedBatch) -> tuple[int, int]:
    """A batch's number of places, and how many of them one may attend to."""
    return len(batch.tokens), batch.prefixes.shape[1] + batch.rows.shape[2]


def _keeping(compute: Compute) -> Callable[[Tensor], Matrix]:
    """What keeps the base's matrices as they are computed with.

    Raises ``BaseModelError`` where the precision needs a library that is not installed.
    """
    if compute.precision == "nf4":
        from .nf4 import quantising

        return quantising(compute.device, compute.writes)
    return lambda weight: Dense(weight.to(compute.device), compute.writes)
