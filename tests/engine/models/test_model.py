"""Finding a base, its fingerprint, and its weights. numpy only: quick."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from marlaas.engine.errors import BaseModelError
from marlaas.engine.models.config import read_config
from marlaas.engine.models.find import fingerprint, load_base
from marlaas.engine.models.weights import Weights, widen
from tests.engine.rollout.random_base import CONFIG, write_base


def test_a_folder_is_read(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base")
    assert (base.config.architecture, base.config.layers, base.config.head_dim) == ("qwen3", 2, 16)
    assert base.config.tie_word_embeddings and base.config.rope_scaling == {}
    assert load_base(str(tmp_path / "base")) == base


def test_the_fingerprint_follows_weights_and_configuration(tmp_path: Path) -> None:
    one, again, other = (write_base(tmp_path / name, seed) for name, seed in (("a", 0), ("b", 0), ("c", 1)))
    assert one.fingerprint == again.fingerprint != other.fingerprint
    (tmp_path / "b" / "config.json").write_text(json.dumps(CONFIG | {"rope_theta": 5.0}))
    assert load_base(tmp_path / "b").fingerprint != one.fingerprint


def test_large_files_are_told_apart_by_size_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marlaas.engine.models.find.WHOLE", 10)
    file = tmp_path / "weights"
    prints = []
    for data in (b"a" * (3 << 20), b"a" * (3 << 20) + b"a", b"b" + b"a" * (3 << 20), b"a" * (3 << 20) + b"b"):
        file.write_bytes(data)
        prints.append(fingerprint([file]))
    assert len(set(prints)) == 4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"rms_norm_eps": -1e-6}, "rms_norm_eps is -1e-06"),
        ({"rope_theta": float("inf")}, "rope_theta is inf"),
        ({"rope_scaling": {"rope_type": "spiral", "factor": 2.0}}, "of the unknown type 'spiral'"),
    ],
)
def test_what_would_end_a_worker_is_refused(tmp_path: Path, change: dict[str, object], words: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | change))
    with pytest.raises(BaseModelError, match=words):
        read_config(tmp_path / "config.json")


@pytest.mark.parametrize(
    ("rope", "theta", "scaling"),
    [
        ({"rope_theta": 5e5}, 5e5, {}),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, 1e6, {}),
        (
            {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2.0}},
            1e4,
            {"rope_type": "linear", "factor": 2.0},
        ),
        ({"rope_theta": 1e4, "rope_scaling": None}, 1e4, {}),
    ],
)
def test_old_and_new_rotary_settings(
    tmp_path: Path, rope: dict[str, object], theta: float, scaling: dict[str, object]
) -> None:
    plain = {key: value for key, value in CONFIG.items() if key != "rope_theta"}
    (tmp_path / "config.json").write_text(json.dumps(plain | rope))
    config = read_config(tmp_path / "config.json")
    assert (config.rope_theta, config.rope_scaling) == (theta, scaling)


def test_other_architectures_need_fewer_sizes(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(
        '{"model_type": "gpt2", "n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 99, "vocab_size": 7}'
    )
    config = read_config(path)
    sizes = (config.hidden_size, config.layers, config.heads, config.kv_heads, config.head_dim, config.context_length)
    assert sizes == (48, 3, 4, 4, 12, 99)
    assert (config.intermediate_size, config.norm_eps) == (0, 0.0)
    for key in ("intermediate_size", "num_hidden_layers", "max_position_embeddings"):
        path.write_text(json.dumps({name: value for name, value in CONFIG.items() if name != key}))
        with pytest.raises(BaseModelError, match=f"has no '{key}'"):
            read_config(path)
    path.write_text(json.dumps(CONFIG | {"num_hidden_layers": 0}))
    with pytest.raises(BaseModelError, match="num_hidden_layers is 0"):
        read_config(path)
    path.write_text(json.dumps({"model_type": "gemma3", "text_config": CONFIG}))
    with pytest.raises(BaseModelError, match=r"several modalities.*a folder of its own"):
        read_config(path)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(BaseModelError, match=r"no base model 'nowhere'.*tiny"):
        load_base("nowhere")
    with pytest.raises(BaseModelError, match=r"holds no config\.json"):
        load_base(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(BaseModelError, match="holds no"):
        load_base(tmp_path)
    for text, words in (("[1", "no model configuration"), ("{}", "has no 'model_type'")):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(BaseModelError, match=words):
            load_base(tmp_path)


def test_bfloat16_is_widened_exactly() -> None:
    values = np.array([0.0, -1.5, 3.140625, 1e38, -(2.0**-130)], np.float32)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    assert np.array_equal(widen(bits), (bits.astype(np.uint32) << 16).view(np.float32))
    assert np.array_equal(widen(bits)[:3], values[:3])


def test_damaged_weights_are_named(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"a": np.ones((40, 3), np.float16), "b": np.ones(2, np.int64)}, file)
    with pytest.raises(BaseModelError, match="tensor b is stored as I64"):
        Weights([file])
    save_file({"a": np.ones((40, 3), np.float16)}, file)
    assert Weights([file]).load("a").dtype == np.float32
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(BaseModelError, match="ends too early"):
        Weights([file]).load("a")
    for damage in (b"", b"\xff" * 20, b"\x05\x00\x00\x00\x00\x00\x00\x00{not}...."):
        file.write_bytes(damage)
        with pytest.raises(BaseModelError, match="cannot be read"):
            Weights([file])
