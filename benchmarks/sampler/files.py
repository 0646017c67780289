"""Random adapters of the shipped base, in each side's own format. A folder flows in, paths flow out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from marlaas.engine.adapters.statefile import PolicyState, StateHeader, write_state
from marlaas.engine.base.gguf.adapter import write_adapter
from marlaas.engine.base.gguf.names import names_of
from marlaas.engine.base.model import BaseModel, load_base
from marlaas.engine.base.modules import linear_shapes
from marlaas.engine.rollout.llama.model import ensure_base_gguf

from .cases import ALPHA, rank


class Files:
    """The base and any number of adapters, written as they are asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.base: BaseModel = load_base("tiny")

    def base_gguf(self) -> Path:
        """For llama.cpp, plain or ours: float32."""
        return ensure_base_gguf(self.base, self.folder)

    def state(self, number: int) -> Path:
        """An adapter as our trainer writes it."""
        path = self.folder / f"adapter-{number}.state"
        header = StateHeader(rank(number), float(ALPHA), 0, self.base.fingerprint)
        write_state(path, PolicyState(header, self.tensors(number)), sync=False)
        return path

    def adapter_gguf(self, number: int) -> Path:
        """The same adapter for llama.cpp."""
        path = self.folder / f"adapter-{number}.gguf"
        write_adapter(names_of(self.base.config), self.tensors(number), ALPHA, path)
        return path

    def tensors(self, number: int) -> dict[str, NDArray[np.float32]]:
        """An adapter that changes what the base says, but little."""
        random = np.random.default_rng(number)
        tensors = {}
        for module, (out, into) in linear_shapes(self.base.config).items():
            tensors[f"{module}.lora_A"] = (random.normal(size=(rank(number), into)) / np.sqrt(into)).astype(np.float32)
            tensors[f"{module}.lora_B"] = (random.normal(size=(out, rank(number))) * 0.02).astype(np.float32)
        return tensors
