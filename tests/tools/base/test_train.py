"""Training repeats itself from its seed, and the learning rate follows the step."""

import torch

from tools.base.make import Packer, build_network, build_tokenizer, train


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
