"""The sizes of a base model from its ``config.json``, with the same names for all architectures.

Standard library only. Knows no weights and no tokenizer.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import BaseModelError

FAMILIES = ("qwen3", "qwen2", "llama")
"""Architectures whose tensors are all known by name and shape: our GGUF writer and our own passes cover them."""
ALIASES = {
    "hidden_size": ("n_embd", "d_model"),
    "num_hidden_layers": ("n_layer", "n_layers"),
    "num_attention_heads": ("n_head", "n_heads"),
    "max_position_embeddings": ("n_positions", "max_seq_len", "seq_length"),
}
"""Other architectures' keys for the sizes that are required."""
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Keys of different architectures for the number of experts in a layer."""
ROPE_SETTINGS = {
    "linear": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
"""Required settings of scaled rotary positions, by type of scaling."""

ROPE_TYPES = ("default", "dynamic", "longrope", *ROPE_SETTINGS)
"""All types that transformers supports; ``rope`` says which of them are supported here."""


@dataclass(frozen=True)
class BaseConfig:
    """The sizes that the GGUF writer, the sampler and the trainer need."""

    architecture: str
    """Hugging Face's ``model_type``: qwen3, qwen2, llama, …"""
    hidden_size: int
    intermediate_size: int
    """0 where the configuration does not say, which it does for ``FAMILIES``. ``norm_eps`` likewise."""
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
    experts: int = 0
    """Experts of a layer, of which each token takes some; 0 without a mixture."""


def read_config(path: Path) -> BaseConfig:
    """Read ``config.json``, with old (``rope_theta``, ``rope_scaling``) or new (``rope_parameters``) keys.

    Raises ``BaseModelError`` where it cannot be read, describes no language model, or lacks a size that is needed.
    """
    try:
        raw = json.loads(path.read_text("utf-8"))
        if "text_config" in raw:
            raise BaseModelError(
                "describes a model of several modalities; marlaas reads models of text alone.",
                "Save its language model in a folder of its own.",
                where=str(path),
            )
        return _config(raw)
    except OSError as error:
        raise BaseModelError(f"cannot be read: {error.strerror}.", where=str(path)) from error
    except KeyError as error:
        raise BaseModelError(f"has no {error}; marlaas reads decoder-only language models.", where=str(path)) from error
    except BaseModelError:
        raise
    except (ValueError, TypeError, AttributeError, ArithmeticError, LookupError, RecursionError) as error:
        raise BaseModelError(f"is no model configuration: {error}.", where=str(path)) from error


def _config(raw: dict[str, Any]) -> BaseConfig:
    architecture = str(raw["model_type"])
    known = architecture in FAMILIES
    heads, hidden = _size(raw, "num_attention_heads"), _size(raw, "hidden_size")
    rope = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    theta = rope.pop("rope_theta", None) or raw.get("rope_theta") or 10_000.0
    kind = rope.pop("rope_type", None) or rope.pop("type", None) or "default"
    missing = [key for key in ROPE_SETTINGS.get(kind, ()) if rope.get(key) is None]
    if missing:
        raise ValueError(f"its rotary positions of type {kind!r} have no {missing[0]}")
    if known and kind not in ROPE_TYPES:
        raise ValueError(f"its rotary positions are of the unknown type {kind!r}")
    return BaseConfig(
        architecture=architecture,
        hidden_size=hidden,
        intermediate_size=_size(raw, "intermediate_size") if known else int(raw.get("intermediate_size") or 0),
        layers=_size(raw, "num_hidden_layers"),
        heads=heads,
        kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=int(raw.get("head_dim") or hidden // heads),
        vocab_size=_size(raw, "vocab_size"),
        context_length=_size(raw, "max_position_embeddings"),
        norm_eps=_positive(raw["rms_norm_eps"], "rms_norm_eps") if known else float(raw.get("rms_norm_eps") or 0.0),
        rope_theta=_positive(theta, "rope_theta"),
        rope_scaling={} if kind == "default" else {"rope_type": kind, **rope},
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        sliding_window=bool(raw.get("use_sliding_window", False)),
        experts=max(int(raw.get(key) or 0) for key in EXPERTS),
    )


def _size(raw: dict[str, Any], key: str) -> int:
    """A positive number under ``key`` or an alias of it. Raises ``KeyError`` or ``ValueError``."""
    for name in (key, *ALIASES.get(key, ())):
        if raw.get(name) is not None:
            size = int(raw[name])
            if size < 1:
                raise ValueError(f"{name} is {size}")
            return size
    raise KeyError(key)


def _positive(value: Any, name: str) -> float:
    """A finite number above 0, because llama.cpp ends its process for others. Raises ``ValueError``."""
    number = float(value)
    if not 0.0 < number < math.inf:
        raise ValueError(f"{name} is {number}")
    return number
