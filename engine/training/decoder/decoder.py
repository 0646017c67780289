"""The Qwen and Llama families with adapters, by this package's own forward and backward pass. See ``..model``.

Groups are packed, those of several policies one after the other; the base's products are shared by all of them, each
policy's own are multiplied beside, and gradients are added to its vector directly.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ...base.model import BaseModel
from ...base.sizes import PASS_BYTES, PassSize, most_tokens
from ...base.tensors import load
from ..adamw import AdamState
from ..layout import Layout
from ..model import Criterion, Groups
from ..policy_memory import PolicyMemory
from .linear import adapted
from .packing import PackedBatch, packed_batches
from .passes import Keep, Temperatures, logprobs, run, run_backward


class Decoder:
    """Implements ``model.Model`` on any torch ``device``, in passes of ``room`` bytes unless a sequence needs more.

    Raises ``BaseModelError`` where the folder cannot be read.
    """

    def __init__(self, base: BaseModel, device: str = "cpu", room: int = PASS_BYTES) -> None:
        self._config, self._room = base.config, room
        self._base = load(base, torch.device(device))
        self._plain = adapted(self._base)
        self._layers = self._plain
        self._mounted: tuple[AdamState, ...] = ()

    @property
    def mixes(self) -> bool:
        """Several policies may be mounted at a time."""
        return True

    @property
    def vocabulary(self) -> int:
        """Number of token ids, V."""
        return len(self._base.embedding)

    def layout(self, rank: int) -> Layout:
        """Where an adapter of this rank keeps its matrices."""
        return Layout.of(self._base.modules, rank)

    def mount(self, policies: Sequence[PolicyMemory]) -> None:
        """Set these policies' weights beside the base's, unless that has been done since they last changed."""
        states = tuple(policy.optimised for policy in policies)
        if len(states) == len(self._mounted) and all(map(operator.is_, states, self._mounted)):
            return
        self._layers, self._mounted = adapted(self._base, policies), states

    def unmount(self) -> None:
        """Forget which policies are mounted."""
        self._layers, self._mounted = self._plain, ()

    def batches(self, jobs: Sequence[Groups]) -> Iterator[PackedBatch]:
        """Everything that has trained tokens, in order and within the memory that a pass may take."""
        jobs = [tuple(groups) for groups in jobs]
        lengths = (len(sequence.tokens) for groups in jobs for group in groups for sequence in group.sequences)
        return packed_batches(jobs, most_tokens(self._config, max(lengths, default=0), self._room))

    @torch.no_grad()
    def logprobs(self, batch: PackedBatch, temperatures: Temperatures, adapted: bool = True) -> Tensor:
        """Of the trained tokens, (N,); of the base alone unless ``adapted``."""
        return logprobs(self._base, self._layers if adapted else self._plain, batch, temperatures)

    @torch.no_grad()
    def differentiate(self, batch: PackedBatch, temperatures: Temperatures, criterion: Criterion) -> None:
        """Run forward, ask ``criterion``, run backward: adds to the mounted policies' gradients."""
        size = PassSize(self._config, len(batch.tokens), batch.prefixes.shape[1] + batch.rows.shape[2])
        keep = Keep.ALL if size.all <= self._room else Keep.INPUTS
        logp, entropy, tape = run(self._base, self._layers, batch, temperatures, keep)
        run_backward(self._base, self._layers, tape, criterion(logp, entropy))
