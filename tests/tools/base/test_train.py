"""Training repeats itself from its seed, and the learning rate follows the step."""

import pytest
import torch

from tools.base.make import PEAK, Packer, build_network, build_tokenizer, rate, train


def trained() -> torch.Tensor:
    """The embedding after two small steps."""
    torch.manual_seed(0)
    tokenizer = build_tokenizer()
    network = build_network(tokenizer)
    train(network, Packer(tokenizer, rows=1, length=256, seed=0), steps=2)
    weights: torch.Tensor = network.model.embed_tokens.weight.detach()
    return weights


def test_two_runs_agree_to_the_bit() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert torch.equal(trained(), trained())
    finally:
        torch.set_num_threads(threads)


def test_the_rate_rises_then_falls() -> None:
    assert rate(0, 4000) < rate(50, 4000) < rate(99, 4000)
    assert rate(99, 4000) == pytest.approx(PEAK, rel=0.01)
    assert rate(3999, 4000) < PEAK / 50
