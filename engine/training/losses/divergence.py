"""The KL divergence to the base or to the start version, for any loss. Pure functions of log-probabilities."""

from __future__ import annotations

from torch import Tensor


def kl_to_base(logp: Tensor, base_logp: Tensor) -> Tensor:
    """k3, (N,): exp(d) − d − 1 with d = log pi_base − log pi; not negative, and unbiased where pi itself sampled.

    Schulman 2020, "Approximating KL divergence"; used so by GRPO (arXiv 2402.03300, equation 4).
    """
    difference = base_logp - logp
    return difference.exp() - difference - 1.0
