from math import log

import pytest
import torch

from marlaas.engine.trainer.losses import kl_to_base


def test_k3_by_hand() -> None:
    logp = torch.tensor([log(0.5), log(0.5), log(0.1)])
    base = torch.tensor([log(0.5), log(0.25), log(0.2)])
    expected = [0.0, 0.5 - log(0.5) - 1, 2.0 - log(2.0) - 1]
    assert kl_to_base(logp, base).tolist() == pytest.approx(expected, abs=1e-6)


def test_k3_is_the_divergence_on_average() -> None:
    policy, base = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.3, 0.3, 0.4])
    average = (policy * kl_to_base(policy.log(), base.log())).sum()
    assert average.item() == pytest.approx((policy * (policy / base).log()).sum().item(), rel=1e-5)
