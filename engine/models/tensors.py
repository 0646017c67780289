"""The frozen base as torch tensors, for our own passes: Qwen2, Qwen3 and Llama families.

Other bases (``config.unsupported``) train through transformers and PEFT.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from ..errors import BaseModelError
from .find import BaseModel
from .rope import frequencies
from .weights import Weights, linear_shapes

L = TypeVar("L")
M = TypeVar("M")

ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
FEED_FORWARD = ("mlp.gate_proj", "mlp.up_proj")
FUSED = {ATTENTION: "self_attn.qkv_proj", FEED_FORWARD: "mlp.gate_up_proj"}
"""Linear layers that other programs stack in our order."""


@dataclass(frozen=True)
class HeadShape:
    """Number and size of the attention heads."""

    queries: int
    keys: int
    size: int

    @property
    def fold(self) -> int:
        """R: query heads per key head."""
        return self.queries // self.keys

    @property
    def turned(self) -> int:
        """Heads with rotary positions: queries and keys."""
        return self.queries + self.keys

    @property
    def scale(self) -> float:
        """Of attention scores."""
        return float(self.size**-0.5)


@dataclass(frozen=True)
class Stacked:
    """Linear layers with the same input, as one matrix, rows stacked."""

    modules: tuple[str, ...]
    """An adapter has ``<module>.lora_A`` and ``.lora_B``."""
    outputs: tuple[int, ...]
    weight: Tensor
    """(sum of outputs, in)"""
    bias: Tensor | None


@dataclass(frozen=True)
class Layer(Generic[L]):
    """One block, with ``Stacked`` layers or a pass's form of them."""

    attention_norm: Tensor
    """(H,)"""
    qkv: L
    head_norm: Tensor | None
    """(heads of queries and keys, D): only Qwen3."""
    o: L
    mlp_norm: Tensor
    """(H,)"""
    gate_up: L
    down: L

    @property
    def linears(self) -> tuple[L, L, L, L]:
        """In the order of the model."""
        return self.qkv, self.o, self.gate_up, self.down

    def map(self, change: Callable[[L], M]) -> Layer[M]:
        qkv, o, gate_up, down = map(change, self.linears)
        return Layer(self.attention_norm, qkv, self.head_norm, o, self.mlp_norm, gate_up, down)


@dataclass(frozen=True)
class Base:
    """The whole base."""

    embedding: Tensor
    """(V, H)"""
    layers: Sequence[Layer[Stacked]]
    norm: Tensor
    head: Tensor
    """(V, H): the output matrix; the embedding if tied."""
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


def load(
    base: BaseModel,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    given: Mapping[str, Tensor] | None = None,
    matrices: torch.device | None = None,
    one_by_one: bool = False,
) -> Base:
    """Load the base to ``device``, matrices in ``dtype``; norms, biases and positions in float32.

    ``matrices``: another device for linear layers. ``one_by_one``: reads each of ``layers`` at every access. ``given``:
    tensors by the folder's names or ``FUSED``, instead of files; not copied if device and type fit.

    Embedding and head may have more rows than the vocabulary; they stay float32 unless ``dtype`` is exact for them.
    Raises ``BaseModelError`` on damaged files or missing tensors.
    """
    config, reader = base.config, _Reader(base, device, dtype, given, matrices or device)
    embedding = reader.rows("model.embed_tokens.weight")
    return Base(
        embedding,
        reader if one_by_one else tuple(reader),
        reader.vector("model.norm.weight"),
        embedding if config.tie_word_embeddings else reader.rows("lm_head.weight"),
        config.norm_eps,
        reader.heads,
        torch.from_numpy(frequencies(config)).to(device),
    )


class _Reader(Sequence[Layer[Stacked]]):
    """Reads blocks when asked."""

    def __init__(
        self,
        base: BaseModel,
        device: torch.device,
        dtype: torch.dtype,
        given: Mapping[str, Tensor] | None,
        matrices: torch.device,
    ) -> None:
        config = base.config
        self._config, self._device, self._dtype, self._matrices = config, device, dtype, matrices
        self._given, self._files = given, Weights(base.weight_files if given is None else ())
        self._names = frozenset(self._files if given is None else given)
        self._shapes = linear_shapes(config)
        self.heads = HeadShape(config.heads, config.kv_heads, config.head_dim)

    def __len__(self) -> int:
        return self._config.layers

    def __getitem__(self, number: Any) -> Any:
        if not 0 <= number < len(self):
            raise IndexError(number)
        prefix = f"model.layers.{number}."
        norms = [f"{prefix}self_attn.{kind}_norm.weight" for kind in "qk"]
        head_norm = None
        if self._names.issuperset(norms):
            q, k = map(self.vector, norms)
            head_norm = torch.cat([q.expand(self.heads.queries, -1), k.expand(self.heads.keys, -1)])
        return Layer(
            self.vector(f"{prefix}input_layernorm.weight"),
            self._stacked(prefix, *ATTENTION),
            head_norm,
            self._stacked(prefix, "self_attn.o_proj"),
            self.vector(f"{prefix}post_attention_layernorm.weight"),
            self._stacked(prefix, *FEED_FORWARD),
            self._stacked(prefix, "mlp.down_proj"),
        )

    def vector(self, name: str) -> Tensor:
        return self._tensor(name).to(self._device, torch.float32)

    def rows(self, name: str) -> Tensor:
        """The embedding or head: (V, H)."""
        values = self._tensor(name)[: self._config.vocab_size]
        narrow = values.to(self._dtype)
        exact = self._dtype == torch.float32 or values.dtype == self._dtype or bool((narrow == values).all())
        return (narrow if exact else values).to(self._device)

    def _tensor(self, name: str) -> Tensor:
        if self._given is None:
            return torch.from_numpy(self._files.load(name))
        if name not in self._given:
            raise BaseModelError(f"The tensors of the base hold no {name}, which config.json makes them have.")
        return self._given[name].detach()

    def _stacked(self, prefix: str, *parts: str) -> Stacked:
        modules = tuple(prefix + part for part in parts)
        outputs = tuple(self._shapes[module][0] for module in modules)
        fused = prefix + FUSED.get(parts, "")
        sources = (fused,) if f"{fused}.weight" in self._names else modules
        matrices = [self._tensor(f"{name}.weight").to(self._dtype).to(self._matrices) for name in sources]
        biases = [f"{name}.bias" for name in sources]
        bias = None
        if not self._names.isdisjoint(biases):
            sizes = [matrix.shape[0] for matrix in matrices]
            bias = torch.cat(
                [
                    self.vector(name) if name in self._names else torch.zeros(size, device=self._device)
                    for name, size in zip(biases, sizes, strict=True)
                ]
            )
        return Stacked(modules, outputs, torch.cat(matrices) if len(matrices) > 1 else matrices[0], bias)
