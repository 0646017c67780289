"""A base's rotary positions.

Llama 3.1's bands as in Hugging Face's ``_compute_llama3_parameters`` (llama.cpp: one divisor per frequency), YaRN as in
``_compute_yarn_parameters``.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from .config import ROPE_COMPUTED, BaseConfig

Frequencies = NDArray[np.float64]

BOUNDS = {"beta_fast": 32, "beta_slow": 1, "truncate": True}
"""YaRN's, fixed in llama.cpp for our architectures."""


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
        fields["rope.scaling.original_context_length"] = _original(config)
        fields["rope.scaling.attn_factor"] = attention_factor(config) / stretched(float(scaling["factor"]))
    return fields


def unreadable(config: BaseConfig) -> str:
    """What llama.cpp would compute differently, in words; empty: nothing."""
    scaling = config.rope_scaling
    kind = scaling.get("rope_type", "default")
    if kind not in ROPE_COMPUTED:
        return f"of type {kind!r}"
    if kind == "llama3" and config.architecture != "llama":
        return f"of type 'llama3' in the architecture {config.architecture!r}"
    for key, value in BOUNDS.items() if kind == "yarn" else ():
        if scaling.get(key, value) not in (value, None):
            return f"of type 'yarn' with {key} = {scaling[key]}"
    return ""


def frequencies(config: BaseConfig) -> Frequencies:
    """float64 (head_dim / 2,): radians per position, scaled."""
    scaling, plain = config.rope_scaling, _plain(config)
    divisors = llama3_divisors(config)
    if divisors is not None:
        return plain / divisors
    slow = plain / float(scaling.get("factor", 1.0))
    if scaling.get("rope_type") != "yarn":
        return slow
    share = yarn_share(config)
    return slow * share + plain * (1.0 - share)


def yarn_share(config: BaseConfig) -> Frequencies:
    """float64 (head_dim / 2,): each frequency's stretching, 0 (fastest) to 1 (slowest).

    Peng et al., arXiv 2309.00071, section 3.2, with the ramp over indices, as implemented everywhere.
    """
    scaling, size = config.rope_scaling, config.head_dim

    def number(turns: float) -> float:
        """Of the frequency with this many turns in the original context."""
        return size * math.log(_original(config) / (turns * 2 * math.pi)) / (2 * math.log(config.rope_theta))

    first, last = (number(float(scaling.get(key) or BOUNDS[key])) for key in ("beta_fast", "beta_slow"))
    if scaling.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, size - 1)
    width = last - first or 0.001
    return np.clip((np.arange(size // 2, dtype=np.float64) - first) / width, 0.0, 1.0)


def attention_factor(config: BaseConfig) -> float:
    """The factor on queries and keys: 1 except for YaRN.

    llama.cpp applies ``stretched(factor)`` (section 3.4) by itself.
    """
    scaling = config.rope_scaling
    if scaling.get("rope_type") != "yarn":
        return 1.0
    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])
    factor, over, under = float(scaling["factor"]), scaling.get("mscale"), scaling.get("mscale_all_dim")
    return stretched(factor, over) / stretched(factor, under) if over and under else stretched(factor)


def stretched(factor: float, weight: float = 1.0) -> float:
    """YaRN's factor on queries and keys (section 3.4), with some models' ``weight``."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


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


def _original(config: BaseConfig) -> int:
    """Tokens of context before scaling."""
    return int(config.rope_scaling.get("original_max_position_embeddings") or config.context_length)
