"""Keys; standard library only.

``tml-TENANT-`` and 43 random characters (256 bits); episodes' begin with ``tml-episode-`` and stay in memory. Only
SHA-256 is stored, as good as a slow hash for a random key.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import ConfigError

SCOPES = ("chat", "train", "admin")
RANDOM_BYTES = 32
EPISODE = "tml-episode-"
SHOWN = 6
"""Characters stored and shown; the 37 others have over 220 bits."""
LONGEST_NAME = 32


@dataclass(frozen=True)
class Identity:
    """The owner of a valid key."""

    key: int
    tenant: str
    scopes: tuple[str, ...]


@dataclass(frozen=True)
class NewKey:
    """A new key, readable only once."""

    key: str
    digest: bytes
    prefix: str


def new_key(tenant: str) -> NewKey:
    """Characters not allowed in headers become hyphens."""
    name = re.sub(r"[^A-Za-z0-9_.]+", "-", tenant).strip("-")[:LONGEST_NAME] or "tenant"
    random = secrets.token_urlsafe(RANDOM_BYTES)
    key = f"tml-{name}-{random}"
    return NewKey(key, digest(key), key[: len(key) - len(random) + SHOWN])


def new_episode_key() -> str:
    """Make an episode's key."""
    return f"{EPISODE}{secrets.token_urlsafe(RANDOM_BYTES)}"


def digest(key: str) -> bytes:
    """The stored hash."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def check_scopes(scopes: Sequence[str]) -> tuple[str, ...]:
    """In order, each once. Raises ``ConfigError``."""
    for scope in scopes:
        if scope not in SCOPES:
            raise ConfigError(f"There is no scope {scope!r}.", f"Known are {', '.join(SCOPES)}.")
    if not scopes:
        raise ConfigError("A key needs a scope.", f"Known are {', '.join(SCOPES)}.")
    return tuple(scope for scope in SCOPES if scope in scopes)
