"""Small random models of architectures that marlaas writes no GGUF for, and their GGUF as a user would bring it.

Written with the gguf package alone, so that what the engine thinks of names and row orders is compared with something.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
)

from ..hugging_face import SIZES, Array, make

GRANITE: Any = GraniteForCausalLM
OLMO2: Any = Olmo2ForCausalLM
COHERE: Any = CohereForCausalLM
GEMMA2: Any = Gemma2ForCausalLM

SCALES: dict[str, Any] = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.5,
    "attention_multiplier": 0.2,
    "logits_scaling": 2.0,
}

MODELS: dict[str, tuple[str, Callable[[], Any]]] = {
    "granite": ("granite", lambda: GRANITE(GraniteConfig(**SIZES, **SCALES))),
    "olmo2": ("olmo2", lambda: OLMO2(Olmo2Config(**SIZES))),
    "gemma2": (
        "gemma2",
        lambda: GEMMA2(Gemma2Config(**SIZES, head_dim=16, query_pre_attn_scalar=16, sliding_window=64)),
    ),
    "cohere": ("command-r", lambda: COHERE(CohereConfig(**SIZES, logit_scale=0.5))),
}
"""llama.cpp's name of the architecture, and a model of it: one that turns neighbouring pairs where Hugging Face turns
halves, two where both turn halves (one of them with a sliding window), and one where both turn pairs."""


def bring(kind: str, folder: Path, **wrong: Any) -> tuple[Any, Path]:
    """A random model, saved in ``folder``, and its GGUF beside it; ``wrong`` replaces fields of its header."""
    architecture, model_of = MODELS[kind]
    model = make(model_of, folder)
    model.set_attn_implementation("eager")  # the other ways leave out that Gemma 2 caps its scores
    path = folder.with_suffix(".gguf")
    write(model, architecture, path, wrong)
    return model, path


def write(model: Any, architecture: str, path: Path, wrong: dict[str, Any]) -> None:
    config = model.config
    fields: dict[str, int | float] = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "vocab_size": config.vocab_size,
        "rope.freq_base": float(config.rope_parameters["rope_theta"]),
        "rope.dimension_count": config.hidden_size // config.num_attention_heads,
    }
    if architecture == "command-r":
        fields |= {"attention.layer_norm_epsilon": config.layer_norm_eps, "logit_scale": config.logit_scale}
    else:
        fields |= {"attention.layer_norm_rms_epsilon": config.rms_norm_eps}
    if architecture == "gemma2":
        fields |= {
            "attention.sliding_window": config.sliding_window,
            "attention.key_length": config.head_dim,
            "attention.value_length": config.head_dim,
            "attn_logit_softcapping": config.attn_logit_softcapping,
            "final_logit_softcapping": config.final_logit_softcapping,
        }
    if architecture == "granite":
        fields |= {
            "embedding_scale": config.embedding_multiplier,
            "residual_scale": config.residual_multiplier,
            "attention.scale": config.attention_multiplier,
            "logit_scale": config.logits_scaling,
        }
    whole = {"tokenizer.ggml.model": "none", **{f"{architecture}.{key}": value for key, value in fields.items()}}
    number = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names, tensors = gguf.get_tensor_name_map(number, config.num_hidden_layers), {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = tensor.numpy()
        if architecture == "gemma2" and "norm" in name:
            array = array + 1  # Hugging Face adds it when it computes
        if architecture == "granite" and name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            array = pairs_together(array, heads)
        tensors[names.get_name(name, (".weight", ".bias")) or name] = np.ascontiguousarray(array, np.float32)
    save(path, architecture, whole | wrong, tensors)


def save(path: Path, architecture: str, fields: dict[str, Any], tensors: dict[str, Any]) -> None:
    """Write a file; fields that are None are left out."""
    writer = gguf.GGUFWriter(path, architecture)
    ways: dict[type, Callable[[str, Any], None]] = {
        bool: writer.add_bool,
        str: writer.add_string,
        int: writer.add_uint32,
        float: writer.add_float32,
        list: writer.add_array,
    }
    for key, value in fields.items():
        if value is not None:
            ways[type(value)](key, value)
    for name, array in tensors.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def pairs_together(array: Array, heads: int) -> Array:
    size = len(array) // heads
    order = [head * size + half * size // 2 + i for head in range(heads) for i in range(size // 2) for half in (0, 1)]
    return array[order]
