"""A random base as a GGUF file, as llama.cpp's converter would write it: with the gguf package alone."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from marlaas.engine.models.weights import Weights
from tools.random_base.families import Shape
from tools.random_base.make import make_base

from .brought import pairs_together, save as save_file

SMALL = Shape(layers=2, hidden=64, inner=96, heads=4, kv_heads=2)
PRE = {"qwen2": "qwen2", "qwen3": "qwen2", "llama": "llama-bpe"}
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5


def make(folder: Path, family: str, shape: Shape = SMALL, rows: int = 640, **changes: Any) -> Path:
    """A random base of the family in ``folder``, and its file, which is returned."""
    make_base(folder, family, shape, rows=rows, shards=1, changes=changes)
    path = folder.with_suffix(".gguf")
    write(folder, path)
    return path


def write(folder: Path, path: Path, lacking: Iterable[str] = (), **fields: Any) -> None:
    """Write the file; ``fields`` replaces or adds fields, with ``__`` for a dot and the architecture as ``arch``."""
    config = json.loads((folder / "config.json").read_text())
    architecture = config["model_type"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    scaling = config.get("rope_scaling") or {}
    usual: dict[str, Any] = {
        "arch__context_length": config["max_position_embeddings"],
        "arch__embedding_length": config["hidden_size"],
        "arch__block_count": config["num_hidden_layers"],
        "arch__feed_forward_length": config["intermediate_size"],
        "arch__attention__head_count": heads,
        "arch__attention__head_count_kv": kv_heads,
        "arch__attention__key_length": width,
        "arch__attention__value_length": width,
        "arch__attention__layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "arch__rope__freq_base": float(config["rope_theta"]),
        "arch__rope__dimension_count": width,
        **_tokenizer(folder, config),
    }
    named = str(fields.pop("general__architecture", architecture))
    dotted = {key.replace("__", "."): value for key, value in (usual | fields).items()}
    whole = {key.replace("arch.", f"{architecture}."): value for key, value in dotted.items()}
    tensors = {name: np.ones(4, np.float32) for name in lacking if name.startswith("extra")}
    if scaling.get("rope_type") == "llama3":
        tensors["rope_freqs.weight"] = _divisors(config, width, scaling)
    number = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(number, config["num_hidden_layers"])
    weights = Weights(sorted(folder.glob("*.safetensors")))
    for name in weights:
        array = weights.load(name)
        if architecture == "llama" and (".q_proj." in name or ".k_proj." in name):
            array = pairs_together(array, heads if ".q_proj." in name else kv_heads)
        target = names.get_name(name, (".weight", ".bias")) or name
        if target not in lacking and not (name == "lm_head.weight" and config["tie_word_embeddings"]):
            tensors[target] = np.ascontiguousarray(array, np.float32)
    save_file(path, named, whole, tensors)


def _tokenizer(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    added = {token["id"]: token for token in tokenizer["added_tokens"]}
    texts = {number: text for text, number in tokenizer["model"]["vocab"].items()}
    texts |= {number: token["content"] for number, token in added.items()}
    kinds = {number: CONTROL if token["special"] else USER_DEFINED for number, token in added.items()}
    rows = config["vocab_size"]
    numbers = {text: number for number, text in texts.items()}
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    return {
        "tokenizer__ggml__model": "gpt2",
        "tokenizer__ggml__pre": PRE[config["model_type"]],
        "tokenizer__ggml__tokens": [texts.get(number, f"[PAD{number}]") for number in range(rows)],
        "tokenizer__ggml__token_type": [kinds.get(n, NORMAL if n in texts else UNUSED) for n in range(rows)],
        "tokenizer__ggml__merges": merges,
        "tokenizer__ggml__eos_token_id": numbers[settings["eos_token"]],
        "tokenizer__ggml__padding_token_id": numbers[settings["pad_token"]],
        "tokenizer__ggml__bos_token_id": numbers[settings["bos_token"]] if settings["bos_token"] else None,
        "tokenizer__chat_template": settings["chat_template"],
    }


def _divisors(config: dict[str, Any], width: int, scaling: dict[str, Any]) -> Any:
    """The plain frequencies divided by those that transformers computes."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {**scaling, "rope_theta": float(config["rope_theta"])}
    made = LlamaConfig(**{**config, "head_dim": width, "rope_scaling": None, "rope_parameters": rope})
    scaled = ROPE_INIT_FUNCTIONS["llama3"](made, "cpu")[0].numpy()
    plain = float(config["rope_theta"]) ** (-np.arange(0, width, 2) / width)
    return (plain / scaled).astype(np.float32)
