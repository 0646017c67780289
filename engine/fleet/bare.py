"""The base without an adapter, as samplers take it: they always speak under a version."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..adapters import Array, PolicyState, StateHeader, checksum, write_state
from ..base import BaseConfig, BaseModel, linear_shapes

CHANGED = "model.layers.0.mlp.down_proj"
"""The layer that the adapter of zeros sits on: every architecture that can be sampled has it in one piece."""


def write_bare(base: BaseModel, path: Path) -> str:
    """Write an adapter that adds nothing to the base, and return its checksum. Raises as ``write_state`` does."""
    adapter = zeros(base.config)
    write_state(path, PolicyState(StateHeader(1, 1.0, 0, base.fingerprint), adapter), sync=False)
    return checksum(adapter)


def zeros(config: BaseConfig) -> dict[str, Array]:
    """An adapter of rank 1 that changes nothing."""
    out, into = linear_shapes(config)[CHANGED]
    return {
        f"{CHANGED}.lora_A": np.zeros((1, into), np.float32),
        f"{CHANGED}.lora_B": np.zeros((out, 1), np.float32),
    }
