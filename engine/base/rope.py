"""Rotary position settings of a base model in llama.cpp's terms. Pure arithmetic.

Formulas: Llama 3.1's frequency bands as in Hugging Face's ``_compute_llama3_parameters``; llama.cpp takes them as one
divisor for each frequency.
"""

from __future__ import annotations

import math
from typing import Any

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
        fields["rope.scaling.attn_factor"] = yarn_attention(scaling) / _stretched(float(scaling["factor"]))
    return fields


def unreadable(config: BaseConfig) -> str:
    """Rotary positions that llama.cpp would compute in another way, in words; nothing where it is right."""
    scaling = config.rope_scaling
    kind = scaling.get("rope_type", "default")
    if kind not in ("default", "linear", "llama3", "yarn"):
        return f"of type {kind!r}"
    if kind == "llama3" and config.architecture != "llama":
        return f"of type 'llama3' in the architecture {config.architecture!r}"
    usual = {"beta_fast": 32, "beta_slow": 1, "truncate": True}
    for key, value in usual.items() if kind == "yarn" else ():  # llama.cpp has these fixed for our architectures
        if scaling.get(key, value) not in (value, None):
            return f"of type 'yarn' with {key} = {scaling[key]}"
    return ""


def yarn_attention(scaling: dict[str, Any]) -> float:
    """What queries and keys are multiplied by, as Hugging Face's ``_compute_yarn_parameters`` has it.

    Peng et al., arXiv 2309.00071, section 3.4, is ``_stretched(factor)``: what llama.cpp does of its own accord.
    """
    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])
    factor, over, under = float(scaling["factor"]), scaling.get("mscale"), scaling.get("mscale_all_dim")
    return _stretched(factor, over) / _stretched(factor, under) if over and under else _stretched(factor)


def _stretched(factor: float, weight: float = 1.0) -> float:
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


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
