"""Keys of the API, as the application makes and revokes them: only the hash of a key is stored.

Standard library only. The engine need not run: it looks a key up when a client shows it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ...clock import wall_time
from ...errors import ConfigError
from ..schema import outside_transaction


def add_key(database: Path, tenant: str, name: str, digest: bytes, prefix: str, scopes: Sequence[str]) -> int:
    """Store a new key by its SHA-256 digest, and return its number."""
    sql = "INSERT INTO api_keys (tenant, name, hash, prefix, scopes, created) VALUES (?, ?, ?, ?, ?, ?)"
    with outside_transaction(database) as connection:
        row = connection.execute(sql, (tenant, name, digest, prefix, json.dumps(list(scopes)), wall_time()))
        return int(row.lastrowid or 0)


def revoke_key(database: Path, beginning: str) -> tuple[str, str]:
    """Revoke the one key that begins so; returns how it begins and its tenant. Its requests under way are answered.

    ``beginning`` may be longer than what is stored of a key, up to all of it. Raises ``ConfigError`` where none or
    several begin so, or it was revoked before.
    """
    sql = (
        "SELECT id, prefix, tenant, revoked FROM api_keys WHERE substr(prefix, 1, length(?1)) = ?1"
        " OR substr(?1, 1, length(prefix)) = prefix"
    )
    listed = "`marlaas api key list` shows them."
    with outside_transaction(database) as connection:
        found = connection.execute(sql, (beginning,)).fetchall() if beginning else []
        holds = [row for row in found if row[3] is None]
        if not found:
            raise ConfigError(f"No key begins with {beginning!r}.", listed)
        if len(holds) > 1:
            raise ConfigError(f"{len(holds)} keys begin with {beginning!r}.", f"Give more of it; {listed}")
        if not holds:
            raise ConfigError(f"The key {found[0][1]}… was revoked before.", listed)
        number, prefix, tenant, _ = holds[0]
        connection.execute("UPDATE api_keys SET revoked = ? WHERE id = ?", (wall_time(), number))
    return str(prefix), str(tenant)
