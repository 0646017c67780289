"""llama.cpp's names and row order for the tensors of Qwen2, Qwen3 and Llama. Pure.

In the Llama architecture llama.cpp rotates neighbouring pairs of a head's rows where Hugging Face rotates row i with
row i + d/2, so the rows of q and k (weights, biases and a LoRA's B alike) are interleaved. Qwen keeps the order.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import BaseModelError
from .config import BaseConfig

Scalar = TypeVar("Scalar", bound=np.generic)

ARCHITECTURES = ("qwen3", "qwen2", "llama")

BLOCK = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def check_supported(config: BaseConfig) -> None:
    """Raise ``BaseModelError`` for what our GGUF writer does not cover."""
    if config.architecture not in ARCHITECTURES:
        raise BaseModelError(
            f"marlaas writes no GGUF for the architecture {config.architecture!r}, only {', '.join(ARCHITECTURES)}."
        )
    if config.sliding_window:
        raise BaseModelError("Base models with sliding-window attention cannot be sampled with llama.cpp yet.")
    kind = config.rope_scaling.get("rope_type", "default")
    if kind not in ("default", "linear", "llama3", "yarn"):
        raise BaseModelError(f"marlaas writes no GGUF for rotary positions of type {kind!r}.")


def gguf_module(module: str) -> str:
    """llama.cpp's name for a module: ``model.layers.3.mlp.up_proj`` is ``blk.3.ffn_up``.

    Raises ``BaseModelError`` for a module that none of the architectures has.
    """
    if module in OUTSIDE:
        return OUTSIDE[module]
    _, _, rest = module.partition("model.layers.")
    number, _, name = rest.partition(".")
    if name not in BLOCK:
        raise BaseModelError(f"The base model has {module}, which none of {', '.join(ARCHITECTURES)} has.")
    return f"blk.{number}.{BLOCK[name]}"


def rows(config: BaseConfig, module: str, array: NDArray[Scalar]) -> NDArray[Scalar]:
    """``array``, whose first axis is the module's output, in llama.cpp's row order."""
    if config.architecture != "llama":
        return array
    if module.endswith("q_proj"):
        return interleave(array, config.heads)
    return interleave(array, config.kv_heads) if module.endswith("k_proj") else array


def interleave(array: NDArray[Scalar], heads: int) -> NDArray[Scalar]:
    """In each head, put row i + d/2 right after row i."""
    halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(array.shape))
