"""The sizes of a base model, from its ``config.json``, under one name in all architectures.

Standard library only. Knows no weights and no tokenizer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import BaseModelError


@dataclass(frozen=True)
class BaseConfig:
    """The sizes that the GGUF writer, the sampler and the trainer need, under one name in all architectures."""

    architecture: str
    """Hugging Face's ``model_type``: qwen3, qwen2, llama, …"""
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    """Tokens that the model was made for."""
    norm_eps: float
    rope_theta: float
    rope_scaling: dict[str, Any] = field(default_factory=dict)
    """Empty for plain rotary positions, else ``rope_type`` and its parameters."""
    tie_word_embeddings: bool = False
    sliding_window: bool = False


def read_config(path: Path) -> BaseConfig:
    """Read ``config.json``; understands old (``rope_theta``, ``rope_scaling``) and new (``rope_parameters``) keys."""
    try:
        raw = json.loads(path.read_text("utf-8"))
        heads = int(raw["num_attention_heads"])
        rope = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
        theta = rope.pop("rope_theta", None) or raw.get("rope_theta") or 10_000.0
        kind = rope.pop("rope_type", None) or rope.pop("type", None) or "default"
        return BaseConfig(
            architecture=str(raw["model_type"]),
            hidden_size=int(raw["hidden_size"]),
            intermediate_size=int(raw["intermediate_size"]),
            layers=int(raw["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(raw.get("num_key_value_heads") or heads),
            head_dim=int(raw.get("head_dim") or int(raw["hidden_size"]) // heads),
            vocab_size=int(raw["vocab_size"]),
            context_length=int(raw["max_position_embeddings"]),
            norm_eps=float(raw["rms_norm_eps"]),
            rope_theta=float(theta),
            rope_scaling={} if kind == "default" else {"rope_type": kind, **rope},
            tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
            sliding_window=bool(raw.get("use_sliding_window", False)),
        )
    except OSError as error:
        raise BaseModelError(f"{path} cannot be read: {error.strerror}.") from error
    except KeyError as error:
        raise BaseModelError(f"{path} has no {error}; marlaas reads decoder-only language models.") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise BaseModelError(f"{path} is no model configuration: {error}.") from error
