"""llama.cpp's names and row order for the tensors of a base. Pure.

Where llama.cpp rotates neighbouring pairs of a head's rows and Hugging Face rotates row i with row i + d/2, the rows of
q and k (weights, biases and a LoRA's B alike) are interleaved in GGUF files.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import gguf
import numpy as np
from numpy.typing import NDArray

from ...errors import BaseModelError
from ..config import FAMILIES, BaseConfig
from ..rope import unreadable

Scalar = TypeVar("Scalar", bound=np.generic)

BRING = "Bring one of your own: `[rollout] gguf = FILE` in marlaas.toml."

INTERLEAVED = (
    *("llama", "arcee", "arctic", "bailingmoe", "deci", "deepseek", "granite", "granitehybrid", "granitemoe", "llada"),
    *("minicpm", "mistral3", "olmo", "smollm3", "xverse"),
)
"""llama.cpp's architectures that rotate neighbouring pairs while their Hugging Face form rotates halves. Cohere, GLM,
Ernie and others rotate neighbouring pairs in both, so their rows stay as they are."""

RENAMED = {"mistral": "llama", "mixtral": "llama", "cohere": "commandr", "phi": "phi2", "gemma3text": "gemma3"}
"""llama.cpp's names of architectures that Hugging Face calls otherwise, both without dashes."""


@dataclass(frozen=True)
class GgufNames:
    """llama.cpp's names for one base and its tensors, and its order of their rows."""

    architecture: str
    """``general.architecture`` of the base's GGUF, and of its adapters'."""
    config: BaseConfig

    def module(self, module: str) -> str:
        """llama.cpp's name for a module: ``model.layers.3.mlp.up_proj`` is ``blk.3.ffn_up``.

        Raises ``BaseModelError`` for a module that the architecture does not have.
        """
        name: str | None = _name_map(self.architecture, self.config.layers).get_name(module)
        if name is None:
            raise BaseModelError(
                f"llama.cpp's architecture {self.architecture} with {self.config.layers} layers has no {module}, but"
                " the base has.",
                "Configuration and weights may belong to different models: take both from where they came.",
            )
        return name

    def rows(self, module: str, array: NDArray[Scalar]) -> NDArray[Scalar]:
        """``array``, whose first axis is the module's output, in llama.cpp's row order."""
        if self.architecture not in INTERLEAVED:
            return array
        if module.endswith("q_proj"):
            return interleave(array, self.config.heads)
        return interleave(array, self.config.kv_heads) if module.endswith("k_proj") else array


def names_of(config: BaseConfig) -> GgufNames:
    """The names for a base that our writer covers. Raises ``BaseModelError`` for any other, saying what to do."""
    if config.architecture not in FAMILIES:
        raise BaseModelError(
            f"marlaas writes no GGUF for the architecture {config.architecture!r}, only {', '.join(FAMILIES)}.", BRING
        )
    if config.sliding_window:
        raise BaseModelError("marlaas writes no GGUF for base models with sliding-window attention.", BRING)
    positions = unreadable(config)
    if positions:
        raise BaseModelError(f"marlaas writes no GGUF for rotary positions {positions}.", BRING)
    return GgufNames(config.architecture, config)


def names_in(architecture: str, config: BaseConfig) -> GgufNames:
    """The names for a base whose GGUF has ``architecture``. Raises ``BaseModelError`` if that is unknown."""
    if architecture not in _architectures():
        raise BaseModelError(
            f"The architecture {architecture!r} of the base's GGUF is unknown to the gguf package.", "Upgrade gguf."
        )
    return GgufNames(architecture, config)


def names_like(config: BaseConfig) -> GgufNames:
    """The names for a base of which only the folder is known, if its Hugging Face architecture determines them.

    Raises ``BaseModelError`` if it does not, saying what to do.
    """
    wanted = _plain(config.architecture)
    for architecture in _architectures():
        if _plain(architecture) == RENAMED.get(wanted, wanted):
            return GgufNames(architecture, config)
    raise BaseModelError(
        f"What llama.cpp calls the architecture {config.architecture!r} is not known.",
        "Name the base's GGUF: `[rollout] gguf = FILE` in marlaas.toml.",
    )


def interleave(array: NDArray[Scalar], heads: int) -> NDArray[Scalar]:
    """In each head, put row i + d/2 right after row i."""
    halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(array.shape))


class _NameMap(gguf.TensorNameMap):
    def __init__(self, architecture: Any, layers: int) -> None:
        # The parent class adds an architecture's special names to a table that all instances share; so it is copied.
        self.block_mappings_cfg = dict(self.block_mappings_cfg)
        super().__init__(architecture, layers)


@cache
def _architectures() -> dict[str, Any]:
    return {name: architecture for architecture, name in gguf.MODEL_ARCH_NAMES.items()}


@cache
def _name_map(architecture: str, layers: int) -> _NameMap:
    return _NameMap(_architectures()[architecture], layers)


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "")
