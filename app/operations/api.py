"""Opens and closes the API of a home, its keys and its log of requests."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from marlaas.engine.errors import ConfigError, EngineUnreachable
from marlaas.engine.home.paths import Home
from marlaas.engine.spec.task import tenant_name
from marlaas.engine.store.submissions import add_key

from ..reading import opened
from .commands import ask
from .log_files import LogLine

# Keys of the API. The home keeps hashes, so nobody can read a key a second time.

SCOPES = ("chat",)
LONGEST = 200


@dataclass(frozen=True)
class MadeKey:
    """A new key: its row in the home, and the key itself."""

    key: str
    prefix: str
    id: int
    tenant: str
    name: str
    scopes: tuple[str, ...]


def make_key(home: Home, tenant: str, name: str = "", scopes: Sequence[str] = SCOPES) -> MadeKey:
    """Make a key for a tenant, who need not have tasks. Raises ``ConfigError``, ``StoreError``."""
    from marlaas.engine.daemon.control import create_database
    from marlaas.engine.gateway.keys import check_scopes, new_key  # both load hashlib, and the view of the API none

    tenant = tenant_name(tenant)
    if len(name) > LONGEST or not name.isprintable():
        raise ConfigError(f"A key's name must be a printable text of at most {LONGEST} characters.")
    holds = check_scopes(scopes)
    create_database(home)
    made = new_key(tenant)
    number = add_key(home.database, tenant, name, made.digest, made.prefix, holds)
    return MadeKey(made.key, made.prefix, number, tenant, name, holds)


# The gateway's log of requests. What clients sent is foreign text.

FILE = "api.log"
MOST = 1000


@dataclass(frozen=True)
class Request:
    """One request that has ended."""

    key: str
    """How the key begins; empty if none was shown."""
    when: float
    """Unix time of its beginning."""
    route: str
    model: str
    status: int
    """As in HTTP; 499: the client went away."""
    error: str
    """Empty if it was answered."""
    seconds: float
    tokens: tuple[int, int]
    """Read and sampled."""


def requests_in(lines: Iterable[LogLine]) -> tuple[Request, ...]:
    """The newest requests, newest first."""
    found = [request for line in [*lines][-MOST:] if (request := _read(line.text)) is not None]
    return tuple(reversed(found))


def _read(text: str) -> Request | None:
    try:
        told = json.loads(text)
        seconds = float(told.get("ms", 0.0)) / 1000
        return Request(
            key=str(told.get("key", "")),
            when=datetime.fromisoformat(told["time"]).timestamp(),
            route=str(told["route"]),
            model=str(told.get("model", "")),
            status=int(told.get("status", 0)),
            error=str(told.get("error", "")),
            seconds=seconds if math.isfinite(seconds) else 0.0,
            tokens=(int(told.get("prompt_tokens", 0)), int(told.get("completion_tokens", 0))),
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None


ANSWER_SECONDS = 30.0


def open_api(home: Home, port: int | None) -> str:
    """Open the API by the engine, which is started if need be; returns its address once it answers.

    Raises ``ConfigError`` if the engine refuses, ``EngineUnreachable`` if engine or API do not answer.
    """
    from marlaas.engine.gateway.api import check_installed

    check_installed()
    ask(home, "api_start", port=port)
    with opened(home) as reader:
        state = reader.api_state()
    url = state.url if state is not None else ""
    until = time.monotonic() + ANSWER_SECONDS
    while not answers(url):
        if time.monotonic() > until:
            log = home.logs / "gateway.log"
            raise EngineUnreachable(f"The API at {url} has not answered within {ANSWER_SECONDS:g} s.", f"See {log}.")
        time.sleep(0.1)
    return url


def answers(url: str, timeout: float = 2.0) -> bool:
    """True if a gateway answers at this address."""
    from http.client import HTTPException  # takes time, and the view of the API needs the rest of this module
    from urllib.request import ProxyHandler, build_opener

    try:
        with build_opener(ProxyHandler({})).open(f"{url}/healthz", timeout=timeout) as response:  # no proxy: it is near
            return bool(response.status == 200)
    except (OSError, HTTPException, ValueError):  # ValueError: there is no address
        return False
