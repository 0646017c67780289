"""Finds a base model and reads what all stages must agree on: its sizes and its fingerprint.

It reads ``config.json`` and hashes files, but does not interpret the weights. Standard library only, so that the engine
and the command line may import it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..errors import BaseModelError
from .config import BaseConfig, read_config
from .files import CONFIG, GGUF_FILE, check_plain, weight_files
from .find import SHIPPED, find_base

__all__ = ["SHIPPED", "BaseModel", "fingerprint", "load_base", "weight_files"]

WHOLE = 64 << 20
"""Weight files up to this many bytes are hashed whole, larger ones by their size, first and last mebibyte."""


@dataclass(frozen=True)
class BaseModel:
    """A base model folder in Hugging Face's layout."""

    path: Path
    config: BaseConfig
    fingerprint: str
    """16 hex digits over configuration and weights; adapters and cached files belong to exactly one."""

    @property
    def gguf(self) -> Path | None:
        """The GGUF file that the base was made from, if it lies in the folder."""
        path = self.path / GGUF_FILE
        return path if path.is_file() else None

    @property
    def weight_files(self) -> tuple[Path, ...]:
        """The safetensors files, in order."""
        return weight_files(self.path)


def load_base(name: str | Path) -> BaseModel:
    """Read the base model called ``name``: shipped, a folder, or in the Hugging Face cache (see ``find_base``).

    Raises ``BaseModelError`` if there is none, or if it lacks a configuration or safetensors weights.
    """
    path = find_base(name)
    if not (path / CONFIG).is_file():
        raise BaseModelError(f"the folder is no base model: it holds no {CONFIG}.", where=str(path))
    config = read_config(path / CONFIG)
    files = weight_files(path)
    if not files:
        check_plain(path)
    try:
        return BaseModel(path, config, fingerprint((path / CONFIG, *files)))
    except OSError as error:
        raise BaseModelError(f"cannot be read: {error.strerror}.", where=str(error.filename or path)) from error


def fingerprint(files: Iterable[Path]) -> str:
    """16 hex digits of SHA-256 over the files' names and bytes (of large files: over their ends, see ``WHOLE``).

    The names are those in the folder, not those of links' targets: so a copy of a snapshot has the same fingerprint.
    """
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
