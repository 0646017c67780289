from math import log

import pytest
import torch

from marlaas.engine.trainer.losses import token_logprobs


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
