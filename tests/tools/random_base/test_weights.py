"""Shards and index are those of the formats; values depend on seed and name alone."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from marlaas.engine.models.weights import Weights
from tools.random_base.make import BIASES, LOGITS, NORMS, draw, write_weights

SHAPES = {
    "model.embed_tokens.weight": (50, 8),
    "a.proj.weight": (30, 16),
    "a.proj.bias": (900,),
    "a.norm.weight": (800,),
}


@pytest.mark.parametrize("shards", [1, 2, 3, 4])
def test_shards_hold_the_same_values_and_the_index_finds_them(tmp_path: Path, shards: int) -> None:
    write_weights(tmp_path, SHAPES, shards, seed=3)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) == shards
    loaded = {name: tensor for file in files for name, tensor in load_file(file).items()}
    assert {name: tuple(tensor.shape) for name, tensor in loaded.items()} == SHAPES
    ours = Weights(files)
    for name, shape in SHAPES.items():
        drawn = draw(name, shape, 8, 3).reshape(shape)
        assert torch.equal(loaded[name], torch.from_numpy(drawn).bfloat16())
        assert np.array_equal(ours.load(name), loaded[name].float().numpy())
    index = tmp_path / "model.safetensors.index.json"
    assert index.exists() == (shards > 1)
    if shards > 1:
        content = json.loads(index.read_text())
        assert content["metadata"]["total_size"] == sum(2 * tensor.numel() for tensor in loaded.values())
        assert all(name in load_file(tmp_path / file) for name, file in content["weight_map"].items())
        assert content["weight_map"].keys() == SHAPES.keys()


def test_values_are_as_described_and_streams_apart() -> None:
    for name, shape, mean, deviation in (
        ("model.embed_tokens.weight", (100, 100), 0.0, LOGITS / 10),
        ("a.proj.weight", (100, 100), 0.0, 0.1),
        ("a.proj.bias", (10_000,), 0.0, BIASES),
        ("a.norm.weight", (10_000,), 1.0, NORMS),
        ("model.norm.weight", (10_000,), 0.0, 1.0),
    ):
        values = draw(name, shape, 100, 0)
        assert values.mean() == pytest.approx(mean, abs=5 * deviation / 100), name
        assert values.std() == pytest.approx(deviation, rel=5 / math.sqrt(2 * values.size)), name
        for other in (draw(name, shape, 100, 1), draw(f"b.{name}", shape, 100, 0)):
            assert abs(np.corrcoef(values, other)[0, 1]) < 0.05
