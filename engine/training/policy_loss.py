"""A policy's loss over some batches: the gradient each asks for, and the sums of what was measured on the way.

Log-probabilities of a batch flow in, the loss by them flows out. Knows nothing of models and adapters.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .losses import LOSSES, TokenView, kl_to_base
from .protocol import PolicyConfig
from .tokens import TrainedTokens


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

    def gradient(self, trained: TrainedTokens, base: Tensor | None, logp: Tensor, entropy: Tensor) -> Tensor:
        """The gradient by ``logp``, (N,), of this batch's share of the step's loss.

        ``base``, ``logp`` and ``entropy`` (N,) belong to ``trained``; ``base`` is needed where there is a KL term.
        """
        behaviour, advantage, sequence = (
            torch.from_numpy(array).to(logp.device)
            for array in (trained.behaviour, trained.advantage, trained.sequence)
        )
        with torch.enable_grad():
            leaf = logp.requires_grad_()
            terms = LOSSES[self.config.loss](TokenView(leaf, behaviour, advantage, sequence), self.config)
            loss = terms.total
            if base is not None:
                divergence = kl_to_base(leaf, base).sum()
                loss = loss + self.config.kl * divergence
                self.kl += float(divergence.detach())
            loss = loss / self.config.denominator
            (gradient,) = torch.autograd.grad(loss, leaf)
        gap = (logp.detach() - behaviour).abs()
        self.measured += len(trained.targets)
        self.loss += float(loss.detach())
        self.entropy += float(entropy.sum())
        self.clipped += terms.clipped
        self.gap_sum += float(gap.sum())
        self.gap_max = max(self.gap_max, float(gap.max()))
        return gradient
