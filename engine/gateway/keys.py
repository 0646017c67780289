"""Keys: making, hashing, names and owners. Standard library only.

A key is ``tml-TENANT-`` and 43 random characters, 256 bits. Only its SHA-256 is stored; for a random key that is as
good as a slow hash. The key of an episode begins with ``tml-episode-`` and is held only in memory.
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
"""Prefix of the keys of episodes."""
SHOWN = 6
"""Random characters of a key that are stored and shown; the 37 others have more than 220 bits."""
LONGEST_NAME = 32


@dataclass(frozen=True)
class Identity:
    """The owner of a valid key."""

    key: int
    tenant: str
    scopes: tuple[str, ...]


@dataclass(frozen=True)
class NewKey:
    """A new key; it cannot be read a second time."""

    key: str
    digest: bytes
    prefix: str


def new_key(tenant: str) -> NewKey:
    """Make a key for a tenant; characters that are not allowed in a header become hyphens."""
    name = re.sub(r"[^A-Za-z0-9_.]+", "-", tenant).strip("-")[:LONGEST_NAME] or "tenant"
    random = secrets.token_urlsafe(RANDOM_BYTES)
    key = f"tml-{name}-{random}"
    return NewKey(key, digest(key), key[: len(key) - len(random) + SHOWN])


def new_episode_key() -> str:
    """Make the key of an episode."""
    return f"{EPISODE}{secrets.token_urlsafe(RANDOM_BYTES)}"


def digest(key: str) -> bytes:
    """The stored hash of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def check_scopes(scopes: Sequence[str]) -> tuple[str, ...]:
    """The scopes in their order, each once. Raises ``ConfigError``."""
    for scope in scopes:
        if scope not in SCOPES:
            raise ConfigError(f"There is no scope {scope!r}.", f"Known are {', '.join(SCOPES)}.")
    if not scopes:
        raise ConfigError("A key needs a scope.", f"Known are {', '.join(SCOPES)}.")
    return tuple(scope for scope in SCOPES if scope in scopes)
