"""Shards, index and bfloat16 are those of the formats; values depend on seed and name alone."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from safetensors.torch import load_file

from marlaas.engine.base.weights import Weights
from tools.random_base import weights
from tools.random_base.weights import Spec, draw, narrow, split, write_weights

SPECS = [Spec("a", (50, 8), 1.0), Spec("b", (7,), 0.5, 1.0), Spec("c", (30, 8), 2.0), Spec("d", (9, 9), 0.1)]
finite = st.floats(width=32, allow_nan=False, allow_infinity=False, max_value=2.0**127, min_value=-(2.0**127))


@given(st.lists(finite, min_size=1))
def test_rounding_is_that_of_torch(values: list[float]) -> None:
    array = np.array(values, np.float32)
    expected = torch.from_numpy(array).bfloat16().view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(narrow(array), expected)


@pytest.mark.parametrize("shards", [1, 2, 3, 4])
def test_shards_hold_the_same_values_and_the_index_finds_them(tmp_path: Path, shards: int) -> None:
    write_weights(tmp_path, SPECS, shards, seed=3)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) == shards
    loaded = {name: tensor for file in files for name, tensor in load_file(file).items()}
    assert {name: tuple(tensor.shape) for name, tensor in loaded.items()} == {spec.name: spec.shape for spec in SPECS}
    ours = Weights(files)
    for spec in SPECS:
        drawn = np.concatenate(list(draw(spec, 3))).reshape(spec.shape)
        assert torch.equal(loaded[spec.name], torch.from_numpy(drawn).bfloat16())
        assert np.array_equal(ours.load(spec.name), loaded[spec.name].float().numpy())
    index = tmp_path / "model.safetensors.index.json"
    assert index.exists() == (shards > 1)
    if shards > 1:
        content = json.loads(index.read_text())
        assert content["metadata"]["total_size"] == sum(2 * tensor.numel() for tensor in loaded.values())
        assert all(name in load_file(tmp_path / file) for name, file in content["weight_map"].items())
        assert len(content["weight_map"]) == len(SPECS)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=20), st.data())
def test_no_shard_is_empty_and_none_out_of_order(sizes: list[int], data: st.DataObject) -> None:
    specs = [Spec(str(number), (size,), 1.0) for number, size in enumerate(sizes)]
    shards = data.draw(st.integers(1, len(specs)))
    parts = split(specs, shards)
    assert len(parts) == shards
    assert all(parts)
    assert [spec for part in parts for spec in part] == specs


def test_more_shards_than_tensors_are_refused(tmp_path: Path) -> None:
    for shards in (0, 5):
        with pytest.raises(ValueError, match="4 tensors cannot be written"):
            write_weights(tmp_path, SPECS, shards, 0)


def test_values_are_as_described_and_streams_apart() -> None:
    spec = Spec("x", (100, 100), 0.5, 2.0)
    (values,) = draw(spec, 0)
    assert values.mean() == pytest.approx(2.0, abs=5 * 0.5 / 100)
    assert values.std() == pytest.approx(0.5, rel=5 / math.sqrt(2 * values.size))
    for other in (draw(spec, 1), draw(Spec("y", spec.shape, 0.5, 2.0), 0)):
        assert abs(np.corrcoef(values, next(other))[0, 1]) < 0.05


def test_large_tensors_come_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = Spec("x", (10, 10), 1.0)
    monkeypatch.setattr(weights, "PIECE", 32)
    assert [len(piece) for piece in draw(spec, 0)] == [32, 32, 32, 4]
