"""``api key new | list | revoke``: keys with which clients of a tenant ask the API. No engine need run."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from ... import output
from ...words.format import ago, count, line
from ..verbs import Verbs, add_family, add_verb, home_of

if TYPE_CHECKING:
    from marlaas.engine.store import ApiKeyRow


def register(family: Verbs) -> None:
    """Add the family ``key`` to the family ``api``."""
    own = add_family(family, "key", "make, list and revoke keys for the API")
    new = add_verb(
        own,
        "new",
        make,
        "make a key for clients of a tenant, and print it this once",
        json=True,
        epilog="A tenant's clients see its own tasks and versions alone. Only a hash of the key is stored.",
    )
    new.add_argument("tenant", metavar="TENANT", help="the tenant's name, as in task files; it need not have tasks yet")
    new.add_argument("--name", metavar="NAME", default="", help="what you call it, for `api key list`")
    new.add_argument(
        "--scopes", metavar="LIST", default="chat", help="what it is for: chat, train, admin, with commas (chat)"
    )
    add_verb(own, "list", show, "list all keys, by how they begin, with what they have used", json=True)
    revoke = add_verb(own, "revoke", end, "revoke a key at once; its requests under way are answered")
    revoke.add_argument("prefix", metavar="PREFIX", help="how the key begins, or all of it")


def make(args: argparse.Namespace) -> int:
    """Make a key."""
    from ...home.api.keys import make_key

    scopes = [scope.strip() for scope in args.scopes.split(",") if scope.strip()]
    made = make_key(home_of(args), args.tenant, args.name, scopes)
    if args.json:
        output.result_json(asdict(made))
        return output.OK
    output.quote(made.key)
    output.talk(f"This key of tenant {line(made.tenant)} is shown this once, for {' and '.join(made.scopes)}.")
    return output.OK


def show(args: argparse.Namespace) -> int:
    """Print all keys."""
    from ...reading.opening import reading

    with reading(home_of(args)) as reader:
        keys = reader.api_keys() if reader else []
    if args.json:
        output.result_json([asdict(key) for key in keys])
        return output.OK
    if not keys:
        output.talk("No keys yet: `marlaas api key new TENANT` makes one.")
        return output.OK
    now = time.time()
    headers = ("KEY", "TENANT", "NAME", "SCOPES", "REQUESTS", "TOKENS IN", "TOKENS OUT", "LAST USE", "STATE")
    output.result_table(headers, [_row(key, now) for key in keys], right=("REQUESTS", "TOKENS IN", "TOKENS OUT"))
    return output.OK


def end(args: argparse.Namespace) -> int:
    """Revoke a key."""
    from marlaas.engine.daemon import create_database
    from marlaas.engine.store import revoke_key

    home = home_of(args)
    create_database(home)
    prefix, tenant = revoke_key(home.database, args.prefix)
    output.talk(f"The key {prefix}… of tenant {line(tenant)} is revoked.")
    return output.OK


def _row(key: ApiKeyRow, now: float) -> tuple[str, ...]:
    return (
        f"{key.prefix}…",
        line(key.tenant, 32),
        line(key.name, 32),
        ",".join(key.scopes),
        count(key.requests),
        count(key.tokens_in),
        count(key.tokens_out),
        "never" if key.last_use is None else ago(key.last_use, now),
        "holds" if key.revoked is None else f"revoked {ago(key.revoked, now)}",
    )
