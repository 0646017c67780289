"""Finds a base model and reads what all stages must agree on: its sizes and its fingerprint.

A name or folder comes in, a ``BaseModel`` goes out. Reads ``config.json`` and hashes files, but never the weights'
meaning; standard library only, so that the engine and the command line may import it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import BaseModelError

SHIPPED = {"tiny": Path(__file__).parent / "tiny"}
WHOLE = 64 << 20
"""Weight files up to this size are hashed whole, larger ones by their size, first and last mebibyte."""


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


@dataclass(frozen=True)
class BaseModel:
    """A base model folder in Hugging Face's layout."""

    path: Path
    config: BaseConfig
    fingerprint: str
    """16 hex digits over configuration and weights; adapters and cached files belong to exactly one."""

    @property
    def weight_files(self) -> tuple[Path, ...]:
        """The safetensors files, in order."""
        return weight_files(self.path)


def load_base(name: str | Path) -> BaseModel:
    """Read the base model called ``name``: one that ships with marlaas (``tiny``) or a folder.

    Raises ``BaseModelError`` if there is none, or if it lacks a configuration or safetensors weights.
    """
    path = SHIPPED.get(str(name), Path(name).expanduser())
    if not path.is_dir():
        raise BaseModelError(
            f"There is no base model {str(name)!r}.",
            f"Give a folder in Hugging Face's layout, or one that ships with marlaas: {', '.join(SHIPPED)}.",
        )
    if not (path / "config.json").is_file():
        raise BaseModelError(f"The folder {path} is no base model: it holds no config.json.")
    config = read_config(path / "config.json")
    files = weight_files(path)
    if not files:
        raise BaseModelError(f"The base model folder {path} holds no *.safetensors weights.")
    return BaseModel(path, config, fingerprint((path / "config.json", *files)))


def weight_files(folder: Path) -> tuple[Path, ...]:
    """All safetensors files of a folder, sorted by name."""
    return tuple(sorted(folder.glob("*.safetensors")))


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


def fingerprint(files: Iterable[Path]) -> str:
    """16 hex digits of SHA-256 over the files' names and bytes (of large files: over their ends, see ``WHOLE``)."""
    digest = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name}:{size}:".encode())
        with open(path, "rb") as file:
            if size <= WHOLE:
                digest.update(file.read())
            else:
                digest.update(file.read(1 << 20))
                file.seek(-(1 << 20), 2)
                digest.update(file.read())
    return digest.hexdigest()[:16]
