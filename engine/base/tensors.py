"""The frozen base as torch tensors by the role they play, from a Hugging Face folder: for our own forward passes.

Knows the parameter names of the Qwen2, Qwen3 and Llama families, and nothing of adapters. What our
passes do not compute (``computed.unsupported``) is trained through transformers and PEFT instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from .model import BaseModel
from .rope import attention_factor, frequencies
from .weights import Weights

L = TypeVar("L")
M = TypeVar("M")

ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
FEED_FORWARD = ("mlp.gate_proj", "mlp.up_proj")


@dataclass(frozen=True)
class HeadShape:
    """How many heads of which size."""

    queries: int
    keys: int
    size: int
    sharpness: float = 1.0
    """What queries and keys are multiplied by each, where stretched positions ask for it."""

    @property
    def fold(self) -> int:
        """Query heads that share one head of keys and values, R."""
        return self.queries // self.keys

    @property
    def turned(self) -> int:
        """Heads that know their position: queries and keys."""
        return self.queries + self.keys

    @property
    def scale(self) -> float:
        """Factor on scores."""
        return float(self.size**-0.5) * self.sharpness**2


@dataclass(frozen=True)
class Stacked:
    """Linear layers with the same input, one above the other."""

    modules: tuple[str, ...]
    """Their paths in the Hugging Face model: an adapter's matrices are ``<module>.lora_A`` and ``.lora_B``."""
    outputs: tuple[int, ...]
    """Rows of each."""
    weight: Tensor
    """(sum of outputs, in)"""
    bias: Tensor | None


@dataclass(frozen=True)
class Layer(Generic[L]):
    """One block: the base's own with ``Stacked`` linear layers, or whatever a pass has made of those."""

    attention_norm: Tensor
    """(H,)"""
    qkv: L
    head_norm: Tensor | None
    """(heads of queries and keys, D): only Qwen3 normalises them."""
    o: L
    mlp_norm: Tensor
    """(H,)"""
    gate_up: L
    down: L

    @property
    def linears(self) -> tuple[L, L, L, L]:
        """In the order in which the model applies them."""
        return self.qkv, self.o, self.gate_up, self.down

    def map(self, change: Callable[[L], M]) -> Layer[M]:
        """The same block with other linear layers."""
        qkv, o, gate_up, down = map(change, self.linears)
        return Layer(self.attention_norm, qkv, self.head_norm, o, self.mlp_norm, gate_up, down)


@dataclass(frozen=True)
class Base:
    """All of it."""

    embedding: Tensor
    """(V, H)"""
    layers: tuple[Layer[Stacked], ...]
    norm: Tensor
    head: Tensor
    """(V, H): the embedding itself where they are tied."""
    eps: float
    heads: HeadShape
    frequencies: Tensor
    """float64 (D/2,): radians per position."""

    @property
    def modules(self) -> dict[str, tuple[int, int]]:
        """(in, out) of each adapted layer, in order."""
        return {
            module: (stacked.weight.shape[1], outputs)
            for layer in self.layers
            for stacked in layer.linears
            for module, outputs in zip(stacked.modules, stacked.outputs, strict=True)
        }


def load(base: BaseModel, device: torch.device) -> Base:
    """Read the weights onto ``device``; raises ``BaseModelError`` on damaged files or missing tensors."""
    config, weights = base.config, Weights(base.weight_files)
    heads = HeadShape(config.heads, config.kv_heads, config.head_dim, attention_factor(config))

    def read(name: str) -> Tensor:
        return torch.from_numpy(weights.load(name)).to(device)

    def maybe(name: str) -> Tensor | None:
        return read(name) if name in weights else None

    def stacked(prefix: str, *names: str) -> Stacked:
        modules = tuple(prefix + name for name in names)
        matrices = [read(f"{module}.weight") for module in modules]
        biases = [maybe(f"{module}.bias") for module in modules]
        present = [bias if bias is not None else m.new_zeros(len(m)) for bias, m in zip(biases, matrices, strict=True)]
        bias = torch.cat(present) if any(bias is not None for bias in biases) else None
        return Stacked(modules, tuple(len(matrix) for matrix in matrices), torch.cat(matrices), bias)

    def head_norm(prefix: str) -> Tensor | None:
        q, k = (maybe(f"{prefix}self_attn.{kind}_norm.weight") for kind in "qk")
        if q is None or k is None:
            return None
        return torch.cat([q.expand(heads.queries, -1), k.expand(heads.keys, -1)])

    def layer(prefix: str) -> Layer[Stacked]:
        return Layer(
            read(f"{prefix}input_layernorm.weight"),
            stacked(prefix, *ATTENTION),
            head_norm(prefix),
            stacked(prefix, "self_attn.o_proj"),
            read(f"{prefix}post_attention_layernorm.weight"),
            stacked(prefix, *FEED_FORWARD),
            stacked(prefix, "mlp.down_proj"),
        )

    embedding = read("model.embed_tokens.weight")
    return Base(
        embedding,
        tuple(layer(f"model.layers.{number}.") for number in range(config.layers)),
        read("model.norm.weight"),
        embedding if config.tie_word_embeddings else read("lm_head.weight"),
        config.norm_eps,
        heads,
        torch.from_numpy(frequencies(config)).to(device),
    )
