"""The Qwen and Llama families with adapters, by this package's own forward and backward pass. See ``..model``.

Groups are packed, those of several policies one after the other. All share the base's products, each policy's adapter
is multiplied with its own rows, and gradients are added to its vector directly.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...base import PASS_BYTES, Base, BaseConfig, BaseModel, Budget, Layer, Stacked, load
from ...trajectories import Tokens
from ..adamw import AdamState
from ..inputs import TrainGroup, TrainSequence
from ..memory.policy_memory import Layout, PolicyMemory
from ..model import Criterion, Groups
from ..rooms import pass_room
from .compute import Compute, compute_on
from .linear import Dense, Linear, Matrix, adapted, loaded_as
from .packing import ROUND_SLOTS, PackedBatch, packed_batches, places_within
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
        plain: tuple[Layer[Linear], ...] = tuple(_Linears(base.layers, compute))
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
        budget = self._now = self._budget.modest(self._config, longest) if on_processor else self._budget
        # a batch's attention pads to its longest prompt and its longest answer, which may be those of two sequences
        attended = 2 * (longest + ROUND_SLOTS)
        keeping, again = budget.tokens(self._config, attended), budget.most_tokens(self._config, attended)
        self._largest = (0, 0)
        for batch in packed_batches(jobs, places_within(keeping), places_within(again)):
            self._largest = max(self._largest, _size(batch))
            yield batch

    def keeps_all(self, batch: PackedBatch) -> bool:
        """True if the layers keep all for the backward pass; else they are computed once more in it."""
        return self._now.keeps_all(self._config, *_size(batch))

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
        keep = Keep.ALL if self.keeps_all(batch) else Keep.INPUTS
        logp, entropy, tape = run(self._over, batch, temperatures, keep)
        slopes = criterion(logp.cpu(), entropy.cpu())
        grad = slopes.logp.to(logp.device, non_blocking=True)
        by_entropy = None if slopes.entropy is None else slopes.entropy.to(logp.device, non_blocking=True)
        run_backward(self._over, tape, grad, by_entropy)


@torch.no_grad()
def score_by_layers(base: BaseModel, tokens: Tokens) -> Tensor:
    """Log-probabilities (T - 1,) of ``tokens[1:]`` by the base alone, with one layer in memory at a time."""
    compute = compute_on("cpu")
    tensors = load(base, compute.device, one_by_one=True)
    mask = np.ones(len(tokens), np.uint8)
    mask[0] = 0
    sequence = TrainSequence(tokens, mask, np.zeros(len(tokens), np.float32), 1.0)
    (batch,) = packed_batches([(TrainGroup(0, (sequence,)),)], len(tokens))
    over = Decoding(replace(tensors, layers=()), compute, _Linears(tensors.layers, compute))
    return logprobs(over, batch, (1.0,))


class _Linears(Sequence[Layer[Linear]]):
    """The base's layers as passes compute with them, each converted when it is asked for."""

    def __init__(self, layers: Sequence[Layer[Stacked]], compute: Compute) -> None:
        self._layers, self._keep = layers, _keeping(compute)

    def __len__(self) -> int:
        return len(self._layers)

    def __getitem__(self, number: Any) -> Any:
        return self._layers[number].map(self._linear)

    def _linear(self, stacked: Stacked) -> Linear:
        return Linear(stacked.modules, stacked.outputs, self._keep(stacked.weight), stacked.bias)


def _size(batch: PackedBatch) -> tuple[int, int]:
    """A batch's number of places, and how many of them one may attend to."""
    return len(batch.tokens), batch.prefixes.shape[1] + batch.rows.shape[2]


def _keeping(compute: Compute) -> Callable[[Tensor], Matrix]:
    """What keeps the base's matrices as they are computed with.

    Raises ``BaseModelError`` where the precision needs a library that is not installed.
    """
    if compute.precision == "nf4":
        from .linear import quantising

        return quantising(compute.device, compute.writes)
    return lambda weight: Dense(weight.to(compute.device), compute.writes)
