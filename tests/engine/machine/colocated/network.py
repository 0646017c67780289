"""A network that keeps its tensors as vLLM does: stacked, wrapped for adapters, rows padded. Plain torch."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import torch
from torch import nn

from marlaas.engine.models.find import BaseModel
from marlaas.engine.models.tensors import load

PADDED = 64
"""Rows of embedding and head come in such numbers."""


class Network(nn.Module):
    def __init__(self, base: BaseModel, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self._dtype = dtype
        own = load(base, torch.device("cpu"))
        self.put("model.embed_tokens.base_layer.weight", padded(own.embedding))
        self.put("model.norm.weight", own.norm)
        if not base.config.tie_word_embeddings:
            self.put("lm_head.weight", padded(own.head))
        for number, layer in enumerate(own.layers):
            prefix = f"model.layers.{number}"
            self.put(f"{prefix}.input_layernorm.weight", layer.attention_norm)
            self.put(f"{prefix}.post_attention_layernorm.weight", layer.mlp_norm)
            if layer.head_norm is not None:
                self.put(f"{prefix}.self_attn.q_norm.weight", layer.head_norm[0])
                self.put(f"{prefix}.self_attn.k_norm.weight", layer.head_norm[-1])
            names = ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")
            for name, stacked in zip(names, layer.linears, strict=True):
                self.put(f"{prefix}.{name}.base_layer.weight", stacked.weight)
                if stacked.bias is not None:
                    self.put(f"{prefix}.{name}.base_layer.bias", stacked.bias)

    def put(self, path: str, values: torch.Tensor) -> None:
        """Register a parameter under a dotted path, whatever stands there already."""
        *modules, name = path.split(".")
        place: nn.Module = self
        for module in modules:
            if module not in dict(place.named_children()):
                place.add_module(module, nn.Module())
            place = place.get_submodule(module)
        copy = values.clone() if not values.is_floating_point() else values.to(self._dtype, copy=True)
        setattr(place, name, nn.Parameter(copy, requires_grad=False))


def padded(rows: torch.Tensor) -> torch.Tensor:
    return torch.cat([rows, rows.new_full((-len(rows) % PADDED, rows.shape[1]), float("nan"))])


def tensors_of(record: object) -> Iterator[torch.Tensor]:
    """Every tensor in a dataclass, nested dataclasses and tuples."""
    if isinstance(record, torch.Tensor):
        yield record
    elif isinstance(record, tuple):
        for part in record:
            yield from tensors_of(part)
    elif is_dataclass(record):
        for field in fields(record):
            yield from tensors_of(getattr(record, field.name))
