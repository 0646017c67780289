"""``api start | stop | status``, and ``api key new | list | revoke`` from ``keys``."""

from __future__ import annotations

import argparse
import time

from ... import output
from ...words.format import ago, counted, line
from ..verbs import Verbs, add_family, add_verb, home_of
from . import keys


def register(verbs: Verbs) -> None:
    """Add the family."""
    family = add_family(verbs, "api", "open the API for OpenAI's and Anthropic's clients, and give them keys")
    opens = add_verb(
        family,
        "start",
        start,
        "open the API to clients, with an engine in the background; prints its address",
        json=True,
        epilog="It stays open over a restart of the engine, until `marlaas api stop`. marlaas.toml has its settings"
        " under [api].",
    )
    opens.add_argument(
        "--port", type=_port, metavar="N", help="listen at this port, 0 for a free one (else that of marlaas.toml)"
    )
    add_verb(family, "stop", stop, "close the API to clients; episodes whose programs ask over HTTP go on")
    add_verb(family, "status", status, "say whether the API is open, where, and how many keys there are", json=True)
    keys.register(family)


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"a port is a whole number from 0 to 65535, not {text!r}")
    return int(text)


def start(args: argparse.Namespace) -> int:
    """Open the API and wait until it answers."""
    from ...home.api.opening import open_api
    from ...reading.opening import reading

    home = home_of(args)
    url = open_api(home, args.port)
    if args.json:
        output.result_json({"url": url})
        return output.OK
    output.result(url)
    with reading(home) as reader:
        holds = [key for key in reader.api_keys() if key.revoked is None] if reader else []
    if not holds:
        output.talk("No client can ask yet: `marlaas api key new TENANT` makes a key.")
    return output.OK


def stop(args: argparse.Namespace) -> int:
    """Close the API."""
    from ...home.api.opening import close_api

    home = home_of(args)
    if close_api(home):
        output.talk("The API is closed; `marlaas api start` opens it again.")
    else:
        output.talk(f"No engine serves {home.root}; the next one keeps the API closed.")
    return output.OK


def status(args: argparse.Namespace) -> int:
    """Print whether the API is open; exit 3 where it is not."""
    from ...reading.opening import reading
    from ...words.tasks import liveness

    home, now = home_of(args), time.time()
    with reading(home) as reader:
        state, engine = (reader.api_state(), reader.engine()) if reader else (None, None)
        known = reader.api_keys() if reader else []
    alive = liveness(engine, now).alive
    is_open = alive and state is not None and state.open
    url = state.url if state is not None and is_open else ""
    since = state.since if state is not None and is_open else None
    note = state.note if state is not None and alive and not is_open else ""
    holds = sum(key.revoked is None for key in known)
    if args.json:
        shown = {"home": str(home.root), "engine": alive, "open": is_open, "url": url, "since": since, "note": note}
        output.result_json(shown | {"keys": holds})
        return output.OK if is_open else output.UNREACHABLE
    if is_open:
        output.result(f"api   open at {url}" + (f", {ago(since, now)}" if since is not None else ""))
    else:
        output.result("api   closed" if alive else "api   closed: no engine runs")
        if note:
            output.result(f"      {line(note)}")
    revoked = len(known) - holds
    output.result(f"keys  {counted(holds, 'key')}" + (f", {revoked} revoked" if revoked else ""))
    return output.OK if is_open else output.UNREACHABLE
