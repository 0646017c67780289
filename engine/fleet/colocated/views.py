"""The base's tensors as vLLM holds them, under the names of its folder, so that a trainer can share them.

vLLM stacks q, k, v and gate, up as our trainer does, and pads the rows of embedding and head, which ``base.tensors``
cuts off by a view; nothing here copies. What vLLM keeps otherwise (quantised, repacked for a processor, a part on each
of several cards) cannot be shared and is refused.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...base import ATTENTION, FEED_FORWARD, FUSED, BaseConfig, linear_shapes
from ...errors import BaseModelError

WRAPPED = ".base_layer"
"""What vLLM puts into the name of a layer that takes adapters."""
HINT = 'Write `share = "memory"` under [resources] in marlaas.toml: sampler and trainer then hold a copy each.'


def named_tensors(model: nn.Module, config: BaseConfig, dtype: torch.dtype) -> dict[str, Tensor]:
    """vLLM's own tensors by their names in the folder, or those of ``base.tensors.FUSED``.

    Raises ``BaseModelError`` where a linear layer is not there whole, or not in ``dtype``: it would have to be copied.
    """
    tensors = {name.replace(WRAPPED, ""): parameter.detach() for name, parameter in model.named_parameters()}
    for name, shape in _expected(config).items():
        held = tensors.get(name)
        found = "nothing" if held is None else _form(held.dtype, tuple(held.shape))
        if found != _form(dtype, shape):
            raise BaseModelError(
                f"vLLM keeps this base in another form than the trainer reads: {name} is {found}, not "
                f"{_form(dtype, shape)}.",
                HINT,
            )
    return tensors


def _expected(config: BaseConfig) -> dict[str, tuple[int, int]]:
    """Shape of every linear layer of the blocks, by its name, with stacked layers as one."""
    shapes = {name: shape for name, shape in linear_shapes(config).items() if name.startswith("model.layers.")}
    expected: dict[str, tuple[int, int]] = {}
    for module, (outputs, inputs) in shapes.items():
        name = f"{_stacked(module)}.weight"
        expected[name] = expected.get(name, (0, inputs))[0] + outputs, inputs
    return expected


def _stacked(module: str) -> str:
    """The name of vLLM's stacked layer that holds this one."""
    for parts in (ATTENTION, FEED_FORWARD):
        for part in parts:
            if module.endswith(part):
                return module.removesuffix(part) + FUSED[parts]
    return module


def _form(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    return f"{str(dtype).removeprefix('torch.')} {shape}"
