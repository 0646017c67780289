"""Matrices of the frozen base in four bits (NormalFloat, Dettmers et al., arXiv 2305.14314), by bitsandbytes.

They take a quarter of bfloat16's memory. For each product, forward and backward, a matrix is widened to bfloat16 and
dropped again. bitsandbytes is optional, and imported only when a trainer is started with this precision.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...errors import BaseModelError
from .matrix import product


@dataclass(frozen=True)
class Quantised:
    """Implements ``matrix.Matrix`` in four bits."""

    functional: Any
    """The functions of bitsandbytes."""
    codes: Tensor
    """uint8: two values in each element."""
    state: Any
    """Scales and shape."""
    writes: torch.dtype = torch.float32
    """See ``Matrix``."""

    @property
    def reads(self) -> torch.dtype:
        """bfloat16"""
        return torch.bfloat16

    def times(self, x: Tensor) -> Tensor:
        """See ``Matrix``."""
        return product(x, self.wide().T, self.writes)

    def back(self, grad: Tensor) -> Tensor:
        """See ``Matrix``."""
        return product(grad.to(torch.bfloat16), self.wide(), self.writes)

    def wide(self) -> Tensor:
        """The matrix as it is multiplied: bfloat16 (out, in)."""
        weight: Tensor = self.functional.dequantize_4bit(self.codes, self.state)
        return weight


def quantising(device: torch.device, writes: torch.dtype) -> Callable[[Tensor], Quantised]:
    """What quantises matrices on ``device``, one at a time. Raises ``BaseModelError`` if bitsandbytes does not work."""
    try:
        functional: Any = importlib.import_module("bitsandbytes.functional")
    except (ImportError, OSError, RuntimeError) as error:
        raise BaseModelError(
            f'`precision = "nf4"` needs bitsandbytes, which cannot be imported here: {error}.',
            "Install it with `pip install 'marlaas[nf4]'`, or choose another `precision` under [training] in "
            "marlaas.toml.",
        ) from error

    def quantised(weight: Tensor) -> Quantised:
        wide = weight.to(device, torch.bfloat16)
        codes, state = functional.quantize_4bit(wide, quant_type="nf4", compress_statistics=True)
        return Quantised(functional, codes, state, writes)

    return quantised
