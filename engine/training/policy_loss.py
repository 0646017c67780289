"""A policy's loss over some batches: the gradient for each batch, and sums of what is measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..spec import published
from .inputs import PolicyConfig, TrainGroup
from .losses import LOG_RATIO_LIMIT, LOSSES, TokenView, kl_to_base
from .model import Lesson, Slopes, TrainedTokens
from .protocol import LogWeights

# Collects the importance weights of trained tokens: how far the policy had moved from the version that sampled them.
#
# They are for people to look at. The loss computes and bounds weights of its own.


class ImportanceNotes:
    """Collects importance weights over the batches of a pass."""

    def __init__(self) -> None:
        self._found: dict[int, LogWeights] = {}
        """By the sequence's ``id``, because batches may hold sequences in any order; the groups keep them alive."""

    def note(self, lesson: Lesson, logp: Tensor) -> None:
        """Keep the weights of a lesson's tokens; ``logp`` is (N,)."""
        trained = lesson.trained
        moved = np.clip(logp.cpu().numpy() - trained.behaviour, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).astype(np.float16)
        parts = np.split(moved, np.flatnonzero(np.diff(trained.sequence)) + 1)
        self._found.update((id(s), part) for s, part in zip(lesson.sequences, parts, strict=True))

    def of(self, groups: Iterable[TrainGroup]) -> dict[int, LogWeights]:
        """Weights by group number, of those groups whose sequences all went through a pass."""
        found = {group.number: [self._found.get(id(s)) for s in group.sequences] for group in groups}
        return {
            number: np.concatenate(whole)
            for number, parts in found.items()
            if len(whole := [part for part in parts if part is not None]) == len(parts) and whole
        }


# A policy's loss over some batches: the gradient for each batch, and sums of what is measured.
#
# The gradient is by the log-probabilities and entropies of a batch, and not yet divided (``step.divisor``). Knows
# nothing of models and adapters.


@dataclass
class PolicyLoss:
    """Sums over the trained tokens of all batches so far; named as in ``protocol.GroupStats``."""

    config: PolicyConfig
    measured: int = 0
    loss: float = 0.0
    entropy: float = 0.0
    clipped: int = 0
    gap_sum: float = 0.0
    gap_max: float = 0.0
    kl: float = 0.0

    def gradient(
        self,
        trained: TrainedTokens,
        base: Tensor | None,
        logp: Tensor,
        entropy: Tensor,
    ) -> Slopes:
        """The gradient of this batch's part of the step's loss by ``logp`` and ``entropy``, before it is divided.

        ``base``, ``logp`` and ``entropy`` (N,) belong to ``trained``; a KL term needs ``base``, its reference. The
        entropy bonus takes weight × entropy off the loss of each token (arXiv 1707.06347, equation 9).
        """
        config = self.config
        behaviour, advantage, sequence, share = (
            torch.from_numpy(array).to(logp.device)
            for array in (trained.behaviour, trained.advantage, trained.sequence, trained.share)
        )
        proximal = None if trained.proximal is None else torch.from_numpy(trained.proximal).to(logp.device)
        with torch.enable_grad():
            leaf = logp.requires_grad_()
            terms = LOSSES[config.loss](TokenView(leaf, behaviour, advantage, sequence, proximal), config)
            values = terms.values
            if base is not None:
                divergence = kl_to_base(leaf, base)
                values = values + config.kl * divergence
                self.kl += float(divergence.detach().sum())
            spread = entropy.detach().requires_grad_()
            if config.entropy > 0.0:
                values = values - config.entropy * spread
            if published(config.loss).mean == "sequence":
                values = values * share
            loss = values.sum()
            gradient, by_entropy = torch.autograd.grad(loss, (leaf, spread), allow_unused=True)
        gap = (logp.detach() - behaviour).abs()
        self.measured += len(trained.targets)
        self.loss += float(loss.detach())
        self.entropy += float(entropy.sum())
        self.clipped += int(terms.clipped.sum())
        self.gap_sum += float(gap.sum())
        self.gap_max = max(self.gap_max, float(gap.max()))
        return Slopes(gradient, by_entropy)
