"""Long sequences in the torch sampler: the same log-probabilities in tiles, in bounded memory."""

import numpy as np
import pytest
import torch

from marlaas.engine.models.find import BaseModel
from marlaas.engine.samplers.batching.context import PIECE
from marlaas.engine.samplers.torch import blocks
from marlaas.engine.samplers.torch.context import TorchContext, TorchWeights

from ...rollout.random_base import write_base
from ...trainer.held import Held


@pytest.fixture(scope="module")
def long_base(tmp_path_factory: pytest.TempPathFactory) -> BaseModel:
    return write_base(tmp_path_factory.mktemp("long") / "base", max_position_embeddings=8192)


def logits(opened: TorchContext, runs: list[tuple[int, list[int]]], begins: list[int] | None = None) -> np.ndarray:
    """Of the last two tokens of each run, which are appended to their sequences, from 0 on unless ``begins`` says."""
    begins = begins or [0] * len(runs)
    counts = [len(tokens) for _, tokens in runs]
    ends = np.cumsum(counts)
    outputs = np.zeros(ends[-1], np.int8)
    outputs[np.concatenate([ends - 2, ends - 1])] = 1
    return opened.decode(
        np.concatenate([tokens for _, tokens in runs]).astype(np.int32),
        np.concatenate([np.arange(b, b + n) for b, n in zip(begins, counts, strict=True)]).astype(np.int32),
        np.repeat([sequence for sequence, _ in runs], counts).astype(np.int32),
        outputs,
    ).copy()


def text(count: int, seed: int = 0) -> list[int]:
    drawn: list[int] = np.random.default_rng(seed).integers(0, 40, count).tolist()
    return drawn


@pytest.mark.parametrize(("weights", "apart"), [("f32", 1e-4), ("bf16", 0.1)])
def test_tiles_change_nothing_but_roundings(
    long_base: BaseModel, monkeypatch: pytest.MonkeyPatch, weights: TorchWeights, apart: float
) -> None:
    """Logits of about 1; in bfloat16 keys and values have 8 bits, and each layer rounds what it adds."""
    runs = [(0, text(1200)), (1, text(30, 1))]
    more = [(0, text(40, 2)), (1, text(5, 3))]
    found = []
    for used in (True, False):
        monkeypatch.setattr(blocks, "tiles", lambda used=used: used)
        opened = TorchContext(long_base, 2, 2048, weights)
        found.append([logits(opened, runs), logits(opened, more, [1200, 30])])
    for ours, plain in zip(*found, strict=True):
        assert np.abs(ours - plain).max() < apart * np.abs(plain).max()


def test_memory_of_a_prompt_grows_with_its_length(long_base: BaseModel) -> None:
    most = []
    for tokens in (2048, 8192):
        opened = TorchContext(long_base, 1, 8192)
        with torch.inference_mode(), Held() as held:
            for begin in range(0, tokens, PIECE):  # as prompts are read
                logits(opened, [(0, text(PIECE, begin))], [begin])
        most.append(held.most)
    assert most[1] < 2.5 * most[0], "with all scores it would be 4 times as much"
