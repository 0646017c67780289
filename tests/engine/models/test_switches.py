"""Every switch of ``config.json`` is computed as transformers computes it, or refused by its key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from marlaas.engine.errors import BaseModelError
from marlaas.engine.models.config import read_config
from marlaas.engine.models.find import load_base
from marlaas.engine.models.weights import check_base
from marlaas.engine.samplers.torch.context import TorchContext
from marlaas.engine.trainer.decoder.decoder import score_by_layers
from tools.random_base.make import make_base

from .made import logprobs_of, transformers

TOKENS = np.random.default_rng(0).integers(0, 600, 240).astype(np.int32)
SMALL = {"max_position_embeddings": 256}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
Changes = dict[str, Any]


def change(folder: Path, **values: Any) -> None:
    """Set keys of ``config.json``; those that are None go."""
    path = folder / "config.json"
    kept = json.loads(path.read_text()) | values
    path.write_text(json.dumps({key: value for key, value in kept.items() if value is not None}))


SAME: dict[str, tuple[str, Changes]] = {
    "rope_scaling takes the place of rope_parameters": (
        "qwen3",
        {"rope_theta": 5e5, "rope_scaling": YARN, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    ),
    "and its rope_theta with it": (
        "qwen2.5",
        {"rope_theta": None, "rope_scaling": YARN, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    ),
    "an old key's type": ("llama3", {"rope_scaling": {"type": "linear", "factor": 2.0}}),
    "the original length next to it": (
        "llama3",
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}, "original_max_position_embeddings": 32},
    ),
    "bands without an original length": (
        "llama3",
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}},
    ),
    "yarn's factor from the lengths": ("qwen3", {"rope_scaling": YARN | {"factor": None}}),
    "yarn, mscale only": ("qwen3", {"rope_scaling": YARN | {"mscale": 0.7}}),
    "silu by another name": ("llama3", {"hidden_act": "swish"}),
    "no hidden_act, no epsilon, no theta": ("qwen2.5", {"hidden_act": None, "rms_norm_eps": None, "rope_theta": None}),
    "biases everywhere": ("llama3", {"attention_bias": True, "mlp_bias": True}),
    "biases of qwen3": ("qwen3", {"attention_bias": True}),
    "a window in no layer": ("qwen2.5", {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 2}),
    "a window that is off": ("qwen2.5", {"sliding_window": 32}),
    "keys that are not read": ("llama3", {"pretraining_tp": 2, "clip_qkv": 0.1, "logits_scaling": 8.0}),
}


@pytest.mark.parametrize("case", SAME)
def test_computed_as_by_transformers(tmp_path: Path, case: str) -> None:
    family, changes = SAME[case]
    folder = make_base(tmp_path / "base", family, rows=1600, changes=SMALL | changes).path
    base = load_base(folder)
    check_base(base)
    wanted = logprobs_of(transformers(base), TOKENS, 1)
    assert np.abs(score_by_layers(base, TOKENS).numpy() - wanted).max() < 1e-3
    context = TorchContext(base, 1, 256)
    positions, sequence, outputs = np.arange(240, dtype=np.int32), np.zeros(240, np.int32), np.ones(240, np.int8)
    logits = torch.from_numpy(np.array(context.decode(TOKENS, positions, sequence, outputs)))[:-1]
    sampled = logits.log_softmax(-1).gather(1, torch.from_numpy(TOKENS[1:])[:, None].long())[:, 0].numpy()
    assert np.abs(sampled - wanted).max() < 1e-3


REFUSED: dict[str, tuple[str, Changes, str]] = {
    "gelu": ("llama3", {"hidden_act": "gelu"}, "hidden_act is 'gelu'; for 'llama' marlaas computes 'silu' only"),
    "gelu of qwen": ("qwen2.5", {"hidden_act": "gelu_pytorch_tanh"}, "hidden_act is 'gelu_pytorch_tanh'"),
    "relu": ("qwen3", {"hidden_act": "relu"}, "hidden_act is 'relu'"),
    "half turned": ("llama3", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
    "half turned, new key": (
        "qwen3",
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}},
        "partial_rotary_factor is 0.25",
    ),
    "by layer": ("qwen3", {"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "by kind of layer"),
    "su": ("llama3", {"rope_scaling": {"type": "su", "factor": 2.0}}, "unknown type 'su'"),
    "no factor": ("llama3", {"rope_scaling": {"type": "yarn"}}, "'yarn' have no factor"),
    "odd heads": ("llama3", {"head_dim": 15}, "head_dim is 15"),
    "heads that do not divide": ("llama3", {"num_key_value_heads": 3}, "4 heads of queries and 3 of keys"),
    "fp8": ("qwen3", {"quantization_config": {"quant_method": "fp8"}}, r"quantised \(fp8\).*dequantize=True"),
    "bits": (
        "qwen3",
        {"quantization_config": {"quant_method": "bitsandbytes"}},
        r"quantised \(bitsandbytes\).*python -c .*dequantize\(\)",
    ),
    "awq": ("qwen3", {"quantization_config": {"quant_method": "awq"}}, r"quantised \(awq\).*dequantize_model"),
    "absent heads of keys": ("qwen2.5", {"num_key_value_heads": None}, "4 heads of queries and 32 of keys"),
    "absent size of heads": (
        "qwen3",
        {"head_dim": None},
        r"q_norm\.weight with the shape \(32,\), and config\.json makes it \(128,\)",
    ),
    "window": ("qwen2.5", {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 1}, ""),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_by_key(tmp_path: Path, case: str) -> None:
    family, changes, words = REFUSED[case]
    folder = make_base(tmp_path / "base", family, rows=1600, changes=SMALL).path
    change(folder, **changes)
    if not words:  # then transformers computes it in the trainer
        assert read_config(folder / "config.json").sliding_window
        return
    with pytest.raises(BaseModelError, match=rf"(?s){words}"):
        check_base(load_base(folder))


def test_settings_that_nobody_reads_are_named(tmp_path: Path) -> None:
    base = make_base(tmp_path, "llama3", rows=1600, changes={"clip_qkv": 8.0, "auto_map": {"A": "b"}, "use_x": False})
    assert base.config.unread == ("clip_qkv = 8.0", 'auto_map = {"A": "b"}')
    assert make_base(tmp_path / "plain", "qwen3", rows=1600).config.unread == ()


def _extra_bias(tensors: dict[str, Any]) -> None:
    tensors["model.layers.0.self_attn.o_proj.bias"] = torch.ones(64)


def _gone(tensors: dict[str, Any]) -> None:
    del tensors["model.layers.1.self_attn.q_norm.weight"]


def _shape(tensors: dict[str, Any]) -> None:
    tensors["model.layers.1.mlp.down_proj.weight"] = torch.ones(64, 161)


def _scale(tensors: dict[str, Any]) -> None:
    tensors["model.layers.0.mlp.up_proj.weight_scale"] = torch.ones(1)


def _head(tensors: dict[str, Any]) -> None:
    tensors["lm_head.weight"] = 2 * tensors["model.embed_tokens.weight"]


def _stored(tensors: dict[str, Any]) -> None:
    tensors["model.norm.weight"] = torch.ones(64).to(torch.float8_e4m3fn)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_extra_bias, r"hold model\.layers\.0\.self_attn\.o_proj\.bias, which transformers' qwen3 model does not have"),
        (_gone, r"hold no model\.layers\.1\.self_attn\.q_norm\.weight"),
        (_shape, r"down_proj\.weight with the shape \(64, 161\), and config\.json makes it \(64, 160\)"),
        (_scale, r"quantised \(fp8\): .*up_proj\.weight_scale"),
        (_head, r"tie_word_embeddings = true, but lm_head\.weight has other values.*false"),
        (_stored, r"quantised \(fp8\): .*model\.norm\.weight as F8_E4M3.*python -c"),
    ],
)
def test_tensors_that_transformers_reads_otherwise(tmp_path: Path, damage: Any, words: str) -> None:
    folder = make_base(tmp_path, "qwen3", rows=1600, shards=1).path
    tensors = load_file(folder / "model.safetensors")
    damage(tensors)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(BaseModelError, match=rf"(?s){words}"):
        check_base(load_base(folder))


def test_a_head_of_the_embedding_s_values_is_tied(tmp_path: Path) -> None:
    folder = make_base(tmp_path, "qwen3", rows=1600, shards=1).path
    tensors = load_file(folder / "model.safetensors")
    for head in (tensors["model.embed_tokens.weight"].clone(), tensors["model.embed_tokens.weight"].float()):
        save_file(tensors | {"lm_head.weight": head}, folder / "model.safetensors")
        check_base(load_base(folder))


def test_a_tensor_in_two_shards_and_pickled_weights(tmp_path: Path) -> None:
    folder = make_base(tmp_path, "qwen3", rows=1600).path
    second = folder / "model-00002-of-00002.safetensors"
    save_file(load_file(second) | {"model.embed_tokens.weight": torch.zeros(1600, 64)}, second)
    with pytest.raises(BaseModelError, match=r"hold model\.embed_tokens\.weight twice, the second time in model-00002"):
        check_base(load_base(folder))
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(BaseModelError, match=r"pickled weights only \(\*\.bin\).*Convert them: python -c .*save_pret"):
        load_base(folder)
