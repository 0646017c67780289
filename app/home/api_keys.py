"""Makes keys of the API: the home keeps their hashes, and nobody can read a key a second time."""

from __future__ import annotations

from collections.abc import Sequence

from marlaas.engine.api import check_scopes, new_key
from marlaas.engine.errors import ConfigError
from marlaas.engine.home import Home
from marlaas.engine.spec import tenant_name
from marlaas.engine.store import add_key

SCOPES = ("chat",)
"""What a key may, unless it is said."""
LONGEST = 200
"""Characters of a name."""


def make_key(home: Home, tenant: str, name: str = "", scopes: Sequence[str] = SCOPES) -> str:
    """A new key for a tenant, who need not have any task; ``name`` says which program has it, and may be empty.

    Raises ``ConfigError``, ``StoreError``.
    """
    made = new_key(tenant_name(tenant))
    if len(name) > LONGEST or not name.isprintable():
        raise ConfigError(f"A key's name must be a printable text of at most {LONGEST} characters.")
    add_key(home.database, tenant, name, made.digest, made.prefix, check_scopes(scopes))
    return made.key
