"""A policy's loss over some batches: the gradient for each batch, and sums of what is measured.

The gradient is by the log-probabilities and entropies of a batch, and not yet divided (``step.divisor``). Knows nothing
of models and adapters.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..spec import published
from .inputs import PolicyConfig
from .losses import LOSSES, TokenView, kl_to_base
from .model import Slopes
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
