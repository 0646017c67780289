"""Seeds of sampling noise, independent of time and load."""

from __future__ import annotations

import hashlib


def noise_seed(*parts: int | str) -> int:
    """An unsigned 64-bit seed from names, equal on every machine."""
    text = "\x1f".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
