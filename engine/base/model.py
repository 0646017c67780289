"""Finds a base model and reads what all stages must agree on: its sizes and its fingerprint.

A name or folder comes in, a ``BaseModel`` goes out. Reads ``config.json`` and hashes files, but never the weights'
meaning; standard library only, so that the engine and the command line may import it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..errors import BaseModelError
from .config import BaseConfig, read_config

SHIPPED = {"tiny": Path(__file__).parent / "tiny"}
WHOLE = 64 << 20
"""Weight files up to this size are hashed whole, larger ones by their size, first and last mebibyte."""


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
