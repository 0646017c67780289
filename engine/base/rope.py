"""Rotary position settings of a base model in llama.cpp's terms. Pure arithmetic.

Formulas: Llama 3.1's frequency bands as in Hugging Face's ``_compute_llama3_parameters``; llama.cpp takes them as one
divisor for each frequency.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from .config import BaseConfig


def rope_fields(config: BaseConfig) -> dict[str, str | int | float]:
    """GGUF metadata, without the architecture's prefix."""
    scaling = config.rope_scaling
    fields: dict[str, str | int | float] = {
        "rope.freq_base": config.rope_theta,
        "rope.dimension_count": config.head_dim,
    }
    if scaling.get("rope_type") in ("linear", "yarn"):
        fields["rope.scaling.type"] = str(scaling["rope_type"])
        fields["rope.scaling.factor"] = float(scaling["factor"])
    if scaling.get("rope_type") == "yarn":
        original = scaling.get("original_max_position_embeddings") or config.context_length
        fields["rope.scaling.original_context_length"] = int(original)
    return fields


def llama3_divisors(config: BaseConfig) -> NDArray[np.float32] | None:
    """float32 (head_dim / 2,): what each frequency is divided by; None where the base has no such scaling."""
    scaling = config.rope_scaling
    if scaling.get("rope_type") != "llama3":
        return None
    factor, low, high = (float(scaling[key]) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    original = float(scaling["original_max_position_embeddings"])
    frequencies = config.rope_theta ** -(np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim)
    turns = original * frequencies / (2 * math.pi)
    """Full rotations within the original context: few for low frequencies, which are stretched by the factor."""
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1.0 / ((1.0 - smooth) / factor + smooth)).astype(np.float32)
