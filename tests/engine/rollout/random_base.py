"""Small random bases (Qwen3 unless said otherwise) and adapters, made with numpy alone: quick, and without torch in
the test's process."""

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from marlaas.engine.adapters.statefile import PolicyState, StateHeader, write_state
from marlaas.engine.models.find import BaseModel, load_base
from marlaas.engine.models.weights import linear_shapes

CONFIG = {
    "model_type": "qwen3",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 50,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}


def write_base(folder: Path, seed: int = 0, **changes: object) -> BaseModel:
    """A base whose next-token distributions are neither flat nor certain."""
    config = CONFIG | changes
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    random = np.random.default_rng(seed)
    hidden, head = int(str(config["hidden_size"])), int(str(config["head_dim"]))
    tensors = {"model.norm.weight": np.ones(hidden, np.float32)}

    def matrix(out: int, into: int, scale: float = 1.0) -> NDArray[np.float32]:
        return np.float32(scale / np.sqrt(into)) * random.standard_normal((out, into), np.float32)

    tensors["model.embed_tokens.weight"] = matrix(int(str(config["vocab_size"])), hidden, 2.0)
    (folder / "model.safetensors").write_bytes(b"")  # load_base wants one; rewritten below
    for layer in range(int(str(config["num_hidden_layers"]))):
        name = f"model.layers.{layer}"
        for norm, size in (("input_layernorm", hidden), ("post_attention_layernorm", hidden)):
            tensors[f"{name}.{norm}.weight"] = np.ones(size, np.float32)
        for norm in ("q_norm", "k_norm") if config["model_type"] == "qwen3" else ():
            tensors[f"{name}.self_attn.{norm}.weight"] = np.ones(head, np.float32)
    for module, (out, into) in linear_shapes(load_base(folder).config).items():
        tensors[f"{module}.weight"] = matrix(out, into)
    save_file(tensors, folder / "model.safetensors")
    return load_base(folder)


def write_adapter(path: Path, base: BaseModel, seed: int, rank: int = 4, scale: float = 0.5) -> Path:
    """A state file with a random adapter that clearly changes what the base says."""
    random = np.random.default_rng(seed)
    adapter: dict[str, NDArray[np.float32]] = {}
    for module, (out, into) in linear_shapes(base.config).items():
        adapter[f"{module}.lora_A"] = (random.normal(size=(rank, into)) / np.sqrt(into)).astype(np.float32)
        adapter[f"{module}.lora_B"] = (random.normal(size=(out, rank)) * scale / np.sqrt(rank)).astype(np.float32)
    write_state(path, PolicyState(StateHeader(rank, float(rank), 0, base.fingerprint), adapter), sync=False)
    return path
