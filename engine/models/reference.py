"""Results of comparing bases with transformers, by fingerprint.

Sampler and trainer share code, so their agreement proves nothing. Standard library only: screens ask, too.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from ..tables import add_to_table, read_table
from .find import SHIPPED, BaseModel

FILE = "compared.json"
RECORD = "reference.json"
"""In a shipped base's folder, for every copy."""
TEXTS = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
"""Decide about token ids, with the chat templates."""
AGREES, DISAGREES, UNVERIFIED = "agrees", "disagrees", "unverified"


@dataclass(frozen=True)
class Comparison:
    """The result of comparing a base with transformers."""

    state: str
    """``UNVERIFIED``: could not be compared."""
    words: str = ""
    tokens: int = 0
    """0 if transformers itself computes the base."""
    gap: float = 0.0
    """Largest, of a log-probability, in nats."""
    conversations: int = 0
    seconds: float = 0.0
    """0: not compared, so another attempt may succeed."""
    memory: int = 0
    transformers: str = ""
    checksum: str = ""


def checksum(base: BaseModel) -> str:
    """16 hex digits over fingerprint, tokenizer files and chat templates."""
    import hashlib  # screens ask ``is_unverified`` before their first paint

    digest = hashlib.sha256(base.fingerprint.encode())
    templates = sorted((base.path / "additional_chat_templates").glob("*.jinja"))
    names = (*TEXTS, "generation_config.json", "chat_template.jinja")
    for file in (*(base.path / name for name in names), *templates):
        with contextlib.suppress(OSError):
            digest.update(f"{file.name}:".encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


def comparison_of(base: BaseModel, home: Path) -> Comparison | None:
    """The result for the installed marlaas and transformers; None: never compared."""
    checked = checksum(base)
    for folder in SHIPPED.values():
        with contextlib.suppress(OSError, ValueError, TypeError):
            shipped = Comparison(**json.loads((folder / RECORD).read_text("utf-8")))
            if shipped.checksum == checked:
                return shipped
    entry = read_table(home / FILE).get(base.fingerprint)
    with contextlib.suppress(TypeError):
        if isinstance(entry, dict) and entry.get("checksum") == f"{checked} {_versions()}":
            return Comparison(**entry)
    return None


def keep_comparison(base: BaseModel, home: Path, comparison: Comparison) -> None:
    """Keep a result in the home's folder."""
    entry = asdict(comparison) | {"checksum": f"{checksum(base)} {_versions()}"}
    add_to_table(home / FILE, {base.fingerprint: entry})


def is_unverified(home: Path, fingerprint: str) -> bool:
    """True if the base could not be compared; quick enough for once a second."""
    entry = read_table(home / FILE).get(fingerprint)
    return isinstance(entry, dict) and entry.get("state") == UNVERIFIED


def _versions() -> str:
    from importlib.metadata import version

    return f"marlaas {version('marlaas')}, transformers {version('transformers')}"
