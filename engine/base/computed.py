"""Which bases our own passes over torch tensors compute. Pure; imports no torch, for the engine asks, too."""

from __future__ import annotations

from .config import FAMILIES, BaseConfig
from .rope import COMPUTED


def unsupported(config: BaseConfig) -> str:
    """Why they cannot compute this base, or nothing."""
    if config.architecture not in FAMILIES:
        return f"its architecture is {config.architecture}"
    if config.rope_scaling.get("rope_type", "default") not in COMPUTED:
        return f"its positions are scaled by {config.rope_scaling['rope_type']}"
    if config.sliding_window:
        return "its attention has a sliding window"
    return ""
