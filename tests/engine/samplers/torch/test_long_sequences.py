"""Long sequences in the torch sampler: the same log-probabilities in tiles and in calls, in bounded memory."""

import numpy as np
import pytest
import torch

from marlaas.engine.models.find import BaseModel
from marlaas.engine.samplers.torch import blocks
from marlaas.engine.samplers.torch.blocks import calls
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


@pytest.mark.parametrize(("weights", "apart"), [("f32", 1e-4), ("bf16", 0.1)])
def test_a_long_prompt_is_computed_in_calls(
    long_base: BaseModel, monkeypatch: pytest.MonkeyPatch, weights: TorchWeights, apart: float
) -> None:
    runs = [(0, text(30, 1)), (1, text(1201)), (2, text(7, 2))]
    whole = logits(TorchContext(long_base, 3, 2048, weights), runs)
    monkeypatch.setattr(blocks, "PREFILL", 500)
    opened = TorchContext(long_base, 3, 2048, weights)
    parts = logits(opened, runs)
    assert opened.held.tolist() == [30, 1201, 7]
    assert np.abs(parts - whole).max() < apart * np.abs(whole).max()
    alone = logits(TorchContext(long_base, 3, 2048, weights), runs[1:2])
    assert (alone == parts[2:4]).all(), "its bits do not depend on what is beside it"


def test_calls_depend_on_a_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "PREFILL", 10)
    rows = np.repeat([4, 5, 6, 9], [3, 21, 10, 11]).astype(np.int32)
    assert [(part.start, part.stop) for part in calls(rows)] == [
        (0, 3),
        (3, 10),
        (10, 17),
        (17, 24),
        (24, 34),
        (34, 39),
        (39, 45),
    ]
    assert calls(np.arange(64, dtype=np.int32)) == [slice(0, 64)]


def test_memory_of_a_prompt_grows_with_its_length(long_base: BaseModel) -> None:
    most = []
    for tokens in (2048, 8192):
        opened = TorchContext(long_base, 1, 8192)
        with torch.inference_mode(), Held() as held:
            logits(opened, [(0, text(tokens))])
        most.append(held.most)
    assert most[1] < 2.5 * most[0], "a call has up to 4,096 tokens; with all scores it would be 16 times as much"
