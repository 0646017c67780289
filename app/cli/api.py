"""``api`` and ``serve``: the API, its keys, the application in a browser."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from dataclasses import asdict
from importlib.util import find_spec

from marlaas.engine.daemon import control
from marlaas.engine.errors import ConfigError
from marlaas.engine.home.paths import Home
from marlaas.engine.store.rows import ApiKeyRow, ApiRow
from marlaas.engine.store.submissions import revoke_key

from .. import output
from ..operations.api import make_key, open_api
from ..operations.commands import leave
from ..reading import reading
from ..text.format import ago, count, counted, line
from ..text.machine import last_use, state_text
from ..text.tasks import liveness
from .parser import Verbs, add_family, add_verb, arg, whole

# ``api key new | list | revoke``: needs no engine.


def make(home: Home, args: argparse.Namespace) -> int:
    """Make a key."""
    scopes = [scope.strip() for scope in args.scopes.split(",") if scope.strip()]
    made = make_key(home, args.tenant, args.name, scopes)
    if args.json:
        return output.result_json(asdict(made))
    output.quote(made.key)
    return output.done(f"This key of tenant {line(made.tenant)} is shown this once, for {' and '.join(made.scopes)}.")


def show(home: Home, args: argparse.Namespace) -> int:
    """Print all keys."""
    with reading(home) as reader:
        keys = reader.api_keys() if reader else []
    headers = ("KEY", "TENANT", "NAME", "SCOPES", "REQUESTS", "TOKENS IN", "TOKENS OUT", "LAST USE", "STATE")
    empty = "No keys yet: `marlaas api key new TENANT` makes one."
    return output.show(keys, args.json, headers, _row, headers[4:7], empty)


def _row(key: ApiKeyRow) -> tuple[str, ...]:
    now = time.time()
    return (
        f"{key.prefix}…",
        line(key.tenant, 32),
        line(key.name, 32),
        ",".join(key.scopes),
        count(key.requests),
        count(key.tokens_in),
        count(key.tokens_out),
        last_use(key, now),
        "holds" if key.revoked is None else f"revoked {ago(key.revoked, now)}",
    )


def end(home: Home, args: argparse.Namespace) -> int:
    """Revoke a key."""
    control.create_database(home)
    prefix, tenant = revoke_key(home.database, args.prefix)
    return output.done(f"The key {prefix}… of tenant {line(tenant)} is revoked.")


def start(home: Home, args: argparse.Namespace) -> int:
    """Open the API and wait until it answers."""
    url = open_api(home, args.port)
    if args.json:
        return output.result_json({"url": url})
    output.result(url)
    with reading(home) as reader:
        if not any(key.revoked is None for key in (reader.api_keys() if reader else ())):
            output.talk("No client can ask yet: `marlaas api key new TENANT` makes a key.")
    return output.OK


def stop(home: Home, args: argparse.Namespace) -> int:
    """Close the API, or keep it closed for the next engine."""
    if leave(home, "api_stop"):
        return output.done("The API is closed; `marlaas api start` opens it again.")
    return output.done(f"No engine serves {home.root}; the next one keeps the API closed.")


def status(home: Home, args: argparse.Namespace) -> int:
    """Print the API's state; exit 3: closed."""
    now = time.time()
    with reading(home) as reader:
        state = (reader.api_state() if reader else None) or ApiRow()
        engine, keys = (reader.engine(), reader.api_keys()) if reader else (None, [])
    alive = liveness(engine, now).alive
    is_open = alive and state.open
    holds = sum(key.revoked is None for key in keys)
    if args.json:
        output.result_json(
            {
                "home": str(home.root),
                "engine": alive,
                "open": is_open,
                "url": state.url if is_open else "",
                "since": state.since if is_open else None,
                "note": state.note if alive and not is_open else "",
                "keys": holds,
            }
        )
    else:
        revoked = f", {len(keys) - holds} revoked" if len(keys) > holds else ""
        output.result(f"api   {state_text(state, alive, now)}")
        output.result(f"keys  {counted(holds, 'key')}{revoked}")
    return output.OK if is_open else output.UNREACHABLE


NEEDS = "textual-serve>=1.1,<2"


def run_serve(home: Home, args: argparse.Namespace) -> int:
    """Serve until Ctrl-C. Raises ``ConfigError``: extra not installed, port taken."""
    if find_spec("textual_serve") is None:
        raise ConfigError("`marlaas serve` needs textual-serve.", f'`pip install "{NEEDS}"` installs it.')
    import asyncio

    from ..web import Gate, serve

    for editor in ("EDITOR", "VISUAL"):
        os.environ.pop(editor, None)  # nobody in a browser can use an editor

    def ready(address: str) -> None:
        readonly = "Read-only; with --control tasks can be changed."
        output.talk("Tasks can be changed from there." if args.control else readonly)
        output.talk("The first browser that opens this address is let in, and no other. Ctrl-C ends it.")
        output.result(address)

    try:
        asyncio.run(serve(shlex.join(served(str(home.root), args.control)), args.port, Gate(), ready))
    except OSError as error:
        raise ConfigError(
            f"Port {args.port} is not free: {error.strerror or error}.", "Choose another one with --port, 0 for any."
        ) from error
    return output.OK


def served(home: str, steers: bool) -> list[str]:
    """The command line of the application for one page."""
    words = [sys.executable, "-P", "-m", "marlaas.app.cli.main", "--home", home, "--web"]
    return words if steers else [*words, "--readonly"]


def register(verbs: Verbs) -> None:
    """Add the verbs."""
    family = add_family(verbs, "api", "open the API for OpenAI's and Anthropic's clients, and give them keys")
    add_verb(
        family,
        "start",
        start,
        "open the API to clients, with an engine in the background; prints its address",
        arg(
            "--port",
            type=whole(0, 65535),
            metavar="N",
            help="listen at this port, 0 for a free one (else that of marlaas.toml)",
        ),
        json=True,
        epilog="It stays open over a restart of the engine, until `marlaas api stop`. marlaas.toml has its settings"
        " under [api].",
    )
    add_verb(family, "stop", stop, "close the API to clients; episodes whose programs ask over HTTP go on")
    add_verb(family, "status", status, "say whether the API is open, where, and how many keys there are", json=True)
    own = add_family(family, "key", "make, list and revoke keys for the API")
    add_verb(
        own,
        "new",
        make,
        "make a key for clients of a tenant, and print it this once",
        arg("tenant", metavar="TENANT", help="the tenant's name, as in task files; it need not have tasks yet"),
        arg("--name", metavar="NAME", default="", help="what you call it, for `api key list`"),
        arg("--scopes", metavar="LIST", default="chat", help="what it is for: chat, train, admin, with commas (chat)"),
        json=True,
        epilog="A tenant's clients see its own tasks and versions alone. Only a hash of the key is stored.",
    )
    add_verb(own, "list", show, "list all keys, by how they begin, with what they have used", json=True)
    add_verb(
        own,
        "revoke",
        end,
        "revoke a key at once; its requests under way are answered",
        arg("prefix", metavar="PREFIX", help="how the key begins, or all of it"),
    )
    add_verb(
        verbs,
        "serve",
        run_serve,
        "show the application in a browser, read-only; the address works once",
        arg("--port", type=whole(0, 65535), default=8000, metavar="N", help="default: 8000; 0: a free one"),
        arg("--control", action="store_true", help="also pause, cancel, submit: all but files and editors"),
        epilog="Only this machine can reach it. From another one: ssh -L 8000:127.0.0.1:8000 HOST, then the address.",
    )
