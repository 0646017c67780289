"""Token views written down by hand, and the gradients of losses."""

from collections.abc import Sequence

import torch

from marlaas.engine.trainer.losses import LOSSES, TokenLoss, TokenView
from marlaas.engine.trainer.protocol import PolicyConfig


def view(
    logp: Sequence[float],
    behaviour: Sequence[float],
    advantage: Sequence[float],
    sequence: Sequence[int] | None = None,
    proximal: Sequence[float] | None = None,
) -> TokenView:
    """Tokens of one sequence, unless told otherwise; float64, so that finite differences mean something."""
    return TokenView(
        torch.tensor(logp, dtype=torch.float64, requires_grad=True),
        torch.tensor(behaviour, dtype=torch.float64),
        torch.tensor(advantage, dtype=torch.float64),
        torch.tensor(sequence or [0] * len(logp)),
        None if proximal is None else torch.tensor(proximal, dtype=torch.float64),
    )


def loss_of(tokens: TokenView, config: PolicyConfig) -> tuple[list[float], list[bool], list[float]]:
    """Values, clipped tokens and the gradient of the values' sum by ``logp``."""
    terms: TokenLoss = LOSSES[config.loss](tokens, config)
    (gradient,) = torch.autograd.grad(terms.values.sum(), tokens.logp)
    return terms.values.tolist(), terms.clipped.tolist(), gradient.tolist()
