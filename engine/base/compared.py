"""Whether a base was compared with transformers, and what came of it: kept by fingerprint in the home.

Sampler and trainer read a folder with the same code, so that they agree with each other proves nothing. Standard
library only: the command line asks, too. What compares is ``fleet.reference``.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..tables import add_to_table, read_table

if TYPE_CHECKING:
    from .model import BaseModel

FILE = "compared.json"
"""In a home: the result of each base, by fingerprint."""
RECORD = "reference.json"
"""In the folder of a base that ships with marlaas: its result, which holds for every copy of its files."""
TEXTS = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
"""Files that decide about token ids, with the chat templates."""
AGREES, DISAGREES, UNVERIFIED = "agrees", "disagrees", "unverified"


@dataclass(frozen=True)
class Comparison:
    """The result of comparing a base with transformers."""

    state: str
    """``AGREES``, ``DISAGREES``, or ``UNVERIFIED`` for a base that could not be compared."""
    words: str = ""
    """How far they are apart, or why nothing could be compared: one sentence."""
    tokens: int = 0
    """Tokens of the text whose log-probabilities were compared; 0 if transformers itself computes the base."""
    gap: float = 0.0
    """The largest difference of a log-probability, in nats."""
    conversations: int = 0
    """Conversations whose token ids were compared."""
    seconds: float = 0.0
    """How long it took; 0 if nothing could be compared, so that another attempt may succeed."""
    memory: int = 0
    """Bytes that the comparison took at most."""
    transformers: str = ""
    """The version that it was compared with."""
    checksum: str = ""
    """Of all that was compared: see ``checksum``."""


def checksum(base: BaseModel) -> str:
    """16 hex digits over the base's fingerprint and the files of its tokenizer and its chat templates."""
    import hashlib  # screens ask ``is_unverified`` before their first paint

    digest = hashlib.sha256(base.fingerprint.encode())
    files = [*(base.path / name for name in TEXTS), base.path / "generation_config.json"]
    files += [base.path / "chat_template.jinja", *sorted((base.path / "additional_chat_templates").glob("*.jinja"))]
    for file in files:
        with contextlib.suppress(OSError):
            digest.update(f"{file.name}:".encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


def comparison_of(base: BaseModel, home: Path) -> Comparison | None:
    """What is known of this base with the installed versions of marlaas and transformers; None: never compared."""
    from .find import SHIPPED

    known = checksum(base)
    for folder in SHIPPED.values():
        with contextlib.suppress(OSError, ValueError, TypeError):
            found = Comparison(**json.loads((folder / RECORD).read_text("utf-8")))
            if found.checksum == known:
                return found
    entry = read_table(home / FILE).get(base.fingerprint)
    if not isinstance(entry, dict) or entry.get("checksum") != f"{known} {versions()}":
        return None
    with contextlib.suppress(TypeError):
        return Comparison(**entry)
    return None


def keep_comparison(base: BaseModel, home: Path, comparison: Comparison) -> None:
    """Keep a result in the home's folder."""
    entry = asdict(comparison) | {"checksum": f"{checksum(base)} {versions()}"}
    add_to_table(home / FILE, {base.fingerprint: entry})


def is_unverified(home: Path, fingerprint: str) -> bool:
    """True if the base with this fingerprint could not be compared; quick enough to ask once a second."""
    entry = read_table(home / FILE).get(fingerprint)
    return isinstance(entry, dict) and entry.get("state") == UNVERIFIED


def versions() -> str:
    """The installed versions, either of which may compute something else than the one before."""
    from importlib.metadata import PackageNotFoundError, version

    found = []
    for package in ("marlaas", "transformers"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            found.append(f"no {package}")
    return ", ".join(found)
