"""The linear layers that an adapter may change: their names and shapes, and the check that an adapter fits. Pure.

Errors use the names of the model folder. For architectures whose shapes are not known, the program that loads the
adapter refuses layers that do not fit.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ..errors import AdapterError
from .config import FAMILIES, BaseConfig

Array = NDArray[np.float32]


def linear_shapes(config: BaseConfig) -> dict[str, tuple[int, int]]:
    """(out, in) of every linear layer of ``FAMILIES`` that LoRA may adapt, by its path in the Hugging Face model."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    block = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    shapes = {f"model.layers.{n}.{name}": shape for n in range(config.layers) for name, shape in block.items()}
    if not config.tie_word_embeddings:  # a tied head is the embedding itself, which llama.cpp cannot adapt
        shapes["lm_head"] = (config.vocab_size, hidden)
    return shapes


def tensor_shapes(config: BaseConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor that transformers' model of one of ``FAMILIES`` has, by its name in the folder."""
    hidden, size = config.hidden_size, config.head_dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    shapes["model.norm.weight"] = (hidden,)
    biased: tuple[str, ...] = ("q_proj", "k_proj", "v_proj") if config.architecture == "qwen2" else ()
    if config.attention_bias:
        biased = ("q_proj", "k_proj", "v_proj", "o_proj")
    if config.mlp_bias:
        biased += ("gate_proj", "up_proj", "down_proj")
    norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    if config.architecture == "qwen3":
        norms |= {"self_attn.q_norm": size, "self_attn.k_norm": size}
    for number in range(config.layers):
        shapes |= {f"model.layers.{number}.{norm}.weight": (length,) for norm, length in norms.items()}
    for module, shape in linear_shapes(config).items():
        shapes[f"{module}.weight"] = shape
        if module.endswith(biased) and biased:
            shapes[f"{module}.bias"] = shape[:1]
    return shapes


def unadapted(config: BaseConfig) -> str:
    """What LoRA leaves as it is in a mixture of experts, in words; empty for other bases.

    transformers keeps a layer's experts in one tensor of three dimensions, which is no linear layer to PEFT.
    """
    if config.experts < 2:
        return ""
    return (
        f"The base is a mixture of {config.experts} experts ({config.architecture}): LoRA adapts its attention, and"
        " shared experts if it has any. The routed experts stay as they are."
    )


def pairs(adapter: dict[str, Array]) -> Iterator[tuple[str, Array, Array]]:
    """(module, A (r, in), B (out, r)) of every adapted module, sorted. Raises ``AdapterError`` if A or B is missing."""
    for module in sorted({name.rpartition(".lora_")[0] for name in adapter}):
        try:
            yield module, adapter[f"{module}.lora_A"], adapter[f"{module}.lora_B"]
        except KeyError as error:
            raise AdapterError(f"The adapter has no {error.args[0]}.") from error


def check_adapter(config: BaseConfig, adapter: dict[str, Array]) -> None:
    """Raise ``AdapterError`` unless every tensor of the adapter fits a linear layer of the base, as far as is known."""
    if not adapter:
        raise AdapterError("The adapter is empty.")
    shapes = linear_shapes(config)
    for name in adapter:
        if not name.endswith((".lora_A", ".lora_B")):
            raise AdapterError(f"The adapter's tensor {name} is no LoRA matrix.")
    for module, a, b in pairs(adapter):
        if config.architecture not in FAMILIES:
            if a.ndim != 2 or b.ndim != 2 or a.shape[0] != b.shape[1]:
                raise AdapterError(f"The adapter's {module} has A {a.shape} and B {b.shape}, which make no product.")
            continue
        if module not in shapes:
            raise AdapterError(f"The adapter changes {module}, which this base model has not or cannot adapt.")
        out, into = shapes[module]
        rank = a.shape[0]
        if a.shape != (rank, into) or b.shape != (out, rank):
            raise AdapterError(
                f"The adapter's {module} has A {a.shape} and B {b.shape}; this base model needs "
                f"A ({rank}, {into}) and B ({out}, {rank}).",
                "It was trained on another base model.",
            )
