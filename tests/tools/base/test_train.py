"""Training repeats itself from its seed, and what is made ships without the scores of other weights."""

from argparse import Namespace
from pathlib import Path

import pytest
import torch

from tools.base.make import Packer, build_network, build_tokenizer, make, train


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


def test_scores_of_the_old_weights_do_not_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("evaluation.json", "README.md"):
        (tmp_path / name).write_text("of the old weights")
    make(Namespace(out=tmp_path, steps=1, rows=1, seed=0, device="cpu", threads=1))
    assert not {"evaluation.json", "README.md"} & {path.name for path in tmp_path.iterdir()}
    assert "are deleted" in capsys.readouterr().out and (tmp_path / "training.json").exists()
