"""The shipped base in a wider shape: the same function, in matrices that every precision of llama.cpp can hold.

Blocks of q4_k, q5_k and q6_k take 256 weights of a row, and the shipped base is 160 wide. Here the residual stream has
96 further places that stay zero, and each head stands twice with half of its output, so that every row is 256 or 512
long. Columns that meet those zeros hold random weights of the matrix's own size, as a trained matrix would.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import bfloat16, float32, from_numpy

from marlaas.engine.base import BaseModel, load_base
from marlaas.engine.base.weights import Weights

WIDTH = 256
COPIES = 2
"""How often each head stands in the wider model."""
KEPT = ("chat_template.jinja", "generation_config.json", "tokenizer.json", "tokenizer_config.json")

Array = NDArray[np.float32]


def make_wide(folder: Path, seed: int = 0) -> BaseModel:
    """Write the wider base into ``folder``, which is made if it lacks. The same seed makes the same files."""
    tiny = load_base("tiny")
    folder.mkdir(parents=True, exist_ok=True)
    for name in KEPT:
        shutil.copy(tiny.path / name, folder / name)
    settings = json.loads((tiny.path / "config.json").read_text(encoding="utf-8"))
    narrow = tiny.config.hidden_size
    settings |= {
        "hidden_size": WIDTH,
        "num_attention_heads": COPIES * tiny.config.heads,
        "num_key_value_heads": COPIES * tiny.config.kv_heads,
        "rms_norm_eps": tiny.config.norm_eps * narrow / WIDTH,
    }
    (folder / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    weights, random = Weights(tiny.weight_files), np.random.default_rng(seed)
    widened = {name: widen(name, weights.load(name), random) for name in weights}
    save_file(
        {
            name: from_numpy(array).to(bfloat16 if array.ndim > 1 else float32).contiguous()
            for name, array in widened.items()
        },
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    return load_base(folder)


def widen(name: str, array: Array, random: np.random.Generator) -> Array:
    """The tensor ``name`` of the wider model, from that of the shipped one.

    A norm's mean is over more places, of which the new ones are zero, so its weights are smaller by the root of that.
    """
    module = name.split(".")[-2]
    if module in ("q_norm", "k_norm"):
        return array
    if array.ndim == 1:
        return np.pad(array * np.float32((len(array) / WIDTH) ** 0.5), (0, WIDTH - len(array)))
    if module == "embed_tokens":
        return np.pad(array, ((0, 0), (0, WIDTH - array.shape[1])))
    if module == "o_proj":
        return _padded_rows(np.tile(array / COPIES, (1, COPIES)))
    if module == "down_proj":
        return _padded_rows(array)
    if module in ("q_proj", "k_proj", "v_proj"):
        array = np.tile(array, (COPIES, 1))
    noise = random.normal(0.0, array.std(), (len(array), WIDTH - array.shape[1])).astype(np.float32)
    return np.concatenate([array, noise], axis=1)


def _padded_rows(array: Array) -> Array:
    return np.pad(array, ((0, WIDTH - len(array)), (0, 0)))
