"""A base's rotary positions: plain, or in Llama 3's bands (``_compute_llama3_parameters`` of transformers)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from .config import ROPE_COMPUTED, BaseConfig

Frequencies = NDArray[np.float64]


def unreadable(config: BaseConfig) -> str:
    """What llama.cpp would compute differently, in words; empty: nothing."""
    kind = config.rope_scaling.get("rope_type", "default")
    if kind not in ROPE_COMPUTED:
        return f"of type {kind!r}"
    if kind == "llama3" and config.architecture != "llama":
        return f"of type 'llama3' in the architecture {config.architecture!r}"
    return ""


def frequencies(config: BaseConfig) -> Frequencies:
    """float64 (head_dim / 2,): radians per position, scaled."""
    divisors = llama3_divisors(config)
    return _plain(config) if divisors is None else _plain(config) / divisors


def llama3_divisors(config: BaseConfig) -> NDArray[np.float32] | None:
    """float32 (head_dim / 2,): the frequencies' divisors; None: no such scaling."""
    scaling = config.rope_scaling
    if scaling.get("rope_type") != "llama3":
        return None
    factor, low, high = (float(scaling[key]) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    original = float(scaling["original_max_position_embeddings"])
    turns = original * _plain(config) / (2 * math.pi)
    """Full rotations within the original context: few for low frequencies, which are stretched by the factor."""
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1.0 / ((1.0 - smooth) / factor + smooth)).astype(np.float32)


def _plain(config: BaseConfig) -> Frequencies:
    """theta^(-2i / head_dim)"""
    exponents = np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim
    return np.asarray(config.rope_theta**-exponents, np.float64)
