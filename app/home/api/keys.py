"""Makes keys of the API: the home keeps their hashes, and nobody can read a key a second time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from marlaas.engine.daemon import create_database
from marlaas.engine.errors import ConfigError
from marlaas.engine.gateway import check_scopes, new_key
from marlaas.engine.home import Home
from marlaas.engine.spec import tenant_name
from marlaas.engine.store import add_key

SCOPES = ("chat",)
"""What a key may, unless it is said."""
LONGEST = 200
"""Characters of a name."""


@dataclass(frozen=True)
class MadeKey:
    """A key that was just made, as the home lists it, and the key itself."""

    key: str
    prefix: str
    """How it begins, for people."""
    id: int
    tenant: str
    name: str
    scopes: tuple[str, ...]


def make_key(home: Home, tenant: str, name: str = "", scopes: Sequence[str] = SCOPES) -> MadeKey:
    """A new key for a tenant, who need not have any task; ``name`` says which program has it, and may be empty.

    Raises ``ConfigError``, ``StoreError``.
    """
    tenant = tenant_name(tenant)
    if len(name) > LONGEST or not name.isprintable():
        raise ConfigError(f"A key's name must be a printable text of at most {LONGEST} characters.")
    holds = check_scopes(scopes)
    create_database(home)
    made = new_key(tenant)
    number = add_key(home.database, tenant, name, made.digest, made.prefix, holds)
    return MadeKey(made.key, made.prefix, number, tenant, name, holds)
