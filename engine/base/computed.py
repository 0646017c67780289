"""Which bases our own forward passes can compute. Pure; imports no torch, because the engine asks, too."""

from __future__ import annotations

from .config import FAMILIES, BaseConfig
from .rope import COMPUTED


def unsupported(config: BaseConfig) -> str:
    """Why our own passes cannot compute this base; empty if they can."""
    if config.architecture not in FAMILIES:
        return f"its architecture is {config.architecture}"
    if config.rope_scaling.get("rope_type", "default") not in COMPUTED:
        return f"its positions are scaled by {config.rope_scaling['rope_type']}"
    if config.sliding_window:
        return "its attention has a sliding window"
    return ""
