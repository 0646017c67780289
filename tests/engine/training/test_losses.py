from math import exp, log

import pytest
import torch

from marlaas.engine.training.losses import TokenView, dr_grpo, find_loss, kl_to_base, token_logprobs, truncated_weights
from marlaas.engine.training.protocol import PolicyConfig

CONFIG = PolicyConfig(importance_cap=2.0)


def view(logp: list[float], behaviour: list[float], advantage: list[float]) -> TokenView:
    return TokenView(
        torch.tensor(logp, requires_grad=True),
        torch.tensor(behaviour),
        torch.tensor(advantage),
        torch.zeros(len(logp), dtype=torch.int64),
    )


def test_log_probabilities_and_entropy_of_two_equal_logits() -> None:
    logp, entropy = token_logprobs(torch.tensor([[3.0, 3.0]]), torch.tensor([1]), 1.0)
    assert logp.item() == pytest.approx(-log(2))
    assert entropy.item() == pytest.approx(log(2))


def test_the_temperature_divides_the_logits() -> None:
    logits = torch.tensor([[0.0, 2 * log(3)]])
    logp, entropy = token_logprobs(logits, torch.tensor([1]), 2.0)  # probabilities 1/4 and 3/4
    assert logp.item() == pytest.approx(log(0.75))
    assert entropy.item() == pytest.approx(-0.25 * log(0.25) - 0.75 * log(0.75))


def test_an_impossible_token_adds_no_entropy() -> None:
    _, entropy = token_logprobs(torch.tensor([[0.0, -torch.inf]]), torch.tensor([0]), 1.0)
    assert entropy.item() == 0.0


def test_weights_are_truncated_above_only() -> None:
    logp, behaviour = torch.tensor([0.0, log(0.5), -1.0]), torch.tensor([-3.0, log(0.5), 1.0])
    weights, cut = truncated_weights(logp, behaviour, 2.0)
    assert weights.tolist() == pytest.approx([2.0, 1.0, exp(-2.0)])
    assert cut.tolist() == [True, False, False]


def test_dr_grpo_by_hand() -> None:
    tokens = view([log(0.5), log(0.2), log(0.9)], [log(0.25), log(0.4), log(0.1)], [1.0, -2.0, 0.5])
    terms = dr_grpo(tokens, CONFIG)
    # ratios 2, 1/2 and 9; the last is truncated to 2
    assert terms.total.item() == pytest.approx(-(2 * log(0.5) + 0.5 * -2.0 * log(0.2) + 2 * 0.5 * log(0.9)), rel=1e-6)
    assert terms.clipped == 1
    terms.total.backward()  # type: ignore[no-untyped-call]
    assert tokens.logp.grad is not None
    assert tokens.logp.grad.tolist() == pytest.approx([-2.0, 1.0, -1.0])  # -w·A: no gradient through the weights


def test_on_policy_the_gradient_is_that_of_reinforce() -> None:
    tokens = view([-1.0, -2.0], [-1.0, -2.0], [0.5, -0.5])
    dr_grpo(tokens, CONFIG).total.backward()  # type: ignore[no-untyped-call]
    assert tokens.logp.grad is not None
    assert tokens.logp.grad.tolist() == pytest.approx([-0.5, 0.5])


def test_k3_by_hand() -> None:
    logp = torch.tensor([log(0.5), log(0.5), log(0.1)])
    base = torch.tensor([log(0.5), log(0.25), log(0.2)])
    expected = [0.0, 0.5 - log(0.5) - 1, 2.0 - log(2.0) - 1]
    assert kl_to_base(logp, base).tolist() == pytest.approx(expected, abs=1e-6)


def test_k3_is_the_divergence_on_average() -> None:
    policy, base = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.3, 0.3, 0.4])
    average = (policy * kl_to_base(policy.log(), base.log())).sum()
    assert average.item() == pytest.approx((policy * (policy / base).log()).sum().item(), rel=1e-5)


def test_an_unknown_loss_names_those_that_exist() -> None:
    assert find_loss("dr_grpo") is dr_grpo
    with pytest.raises(ValueError, match="no loss named 'grpo'; there are: dr_grpo"):
        find_loss("grpo")
