"""Parameters that are kept as vLLM keeps them: stacked, wrapped, rows padded. And a worker that can be looked into."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import nn

from marlaas.engine.machine.colocated import ColocatedWorker
from marlaas.engine.models.find import BaseModel
from marlaas.engine.models.tensors import load

PADDED = 64
"""Rows of embedding and head come in such numbers."""


def parameters_of(base: BaseModel, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    own = load(base, torch.device("cpu"))
    found = {"model.embed_tokens.base_layer.weight": padded(own.embedding), "model.norm.weight": own.norm}
    if not base.config.tie_word_embeddings:
        found["lm_head.weight"] = padded(own.head)
    for number, layer in enumerate(own.layers):
        prefix = f"model.layers.{number}"
        found[f"{prefix}.input_layernorm.weight"] = layer.attention_norm
        found[f"{prefix}.post_attention_layernorm.weight"] = layer.mlp_norm
        if layer.head_norm is not None:
            found[f"{prefix}.self_attn.q_norm.weight"] = layer.head_norm[0]
            found[f"{prefix}.self_attn.k_norm.weight"] = layer.head_norm[-1]
        names = ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")
        for name, stacked in zip(names, layer.linears, strict=True):
            found[f"{prefix}.{name}.base_layer.weight"] = stacked.weight
            if stacked.bias is not None:
                found[f"{prefix}.{name}.base_layer.bias"] = stacked.bias
    return {name: values.to(dtype, copy=True) for name, values in found.items()}


def network_of(parameters: dict[str, torch.Tensor]) -> nn.Module:
    """What is asked for its parameters alone."""
    return cast(nn.Module, SimpleNamespace(named_parameters=parameters.items))


def padded(rows: torch.Tensor) -> torch.Tensor:
    return torch.cat([rows, rows.new_full((-len(rows) % PADDED, rows.shape[1]), float("nan"))])


def tensors_of(record: object) -> Iterator[torch.Tensor]:
    """Every tensor in a dataclass, nested dataclasses and tuples."""
    if isinstance(record, torch.Tensor):
        yield record
    elif isinstance(record, tuple):
        for each in record:
            yield from tensors_of(each)
    elif is_dataclass(record):
        for field in fields(record):
            yield from tensors_of(getattr(record, field.name))


class LookingWorker(ColocatedWorker):
    async def matrices(self) -> tuple[int, int]:
        """How many bytes the matrices of the trainer's base take, and how many of those lie in vLLM's memory."""
        held = {parameter.untyped_storage().data_ptr() for parameter in self._vllm.engine.model.parameters()}
        model: Any = self._trainer._model
        storages = [tensor.untyped_storage() for tensor in tensors_of(model._model.plain) if tensor.dim() == 2]
        own = {storage.data_ptr(): storage.nbytes() for storage in storages}
        return sum(own.values()), sum(size for address, size in own.items() if address in held)
