"""What is read off a request before its body is understood, and what the gateway allows at the same time."""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import itertools
import re
import secrets
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from .answerer import Refusal
from .limits import Limits

if TYPE_CHECKING:
    from starlette.requests import Request


# How much may be under way at once: requests of each key, and bytes of all bodies. What is over is refused.


class Load:
    """Counts what is under way."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._by_key: Counter[str] = Counter()
        self._bytes = 0

    @property
    def requests(self) -> int:
        """Under way now."""
        return self._by_key.total()

    @contextmanager
    def request(self, key: str) -> Iterator[None]:
        """One request of a key. Raises ``Refusal`` where the key has as many under way as it may."""
        if self._by_key[key] >= self._limits.waiting:
            sentence = f"This key has {self._limits.waiting} requests under way; try again when one has been answered."
            raise Refusal(429, "too_many_requests", sentence, retry_after=1.0)
        self._by_key[key] += 1
        try:
            yield
        finally:
            self._by_key[key] -= 1
            if not self._by_key[key]:
                del self._by_key[key]

    @contextmanager
    def body(self) -> Iterator[Body]:
        """A body, from its first byte until its request is answered."""
        body = Body(self, self._limits)
        try:
            yield body
        finally:
            self.hold(-body.bytes)

    def hold(self, size: int) -> None:
        """Count bytes; negative ones are let go. Raises ``Refusal`` where all bodies are too large together."""
        if size > 0 and self._bytes + size > self._limits.bodies_bytes:
            raise Refusal(503, "too_busy", "The bodies of all requests are too large together.", retry_after=1.0)
        self._bytes += size


class Body:
    """A body that is being read."""

    def __init__(self, load: Load, limits: Limits) -> None:
        self._load = load
        self._most = limits.body_bytes
        self.bytes = 0

    def expect(self, size: int) -> None:
        """What its head says. Raises ``Refusal`` where that is too much."""
        if size > self._most:
            raise Refusal(413, "too_large", f"The body has more than {self._most:,} bytes, the most that is read.")

    def add(self, size: int) -> None:
        """Some bytes have come. Raises ``Refusal`` where they are too many."""
        self.expect(self.bytes + size)
        self._load.hold(size)
        self.bytes += size


# Which request is another's retry, and what the two have in common.
#
# The clients of OpenAI and Anthropic count retries in a header, and send the same bytes again. Requests of the same
# bytes are alike, so a retry takes the place of one that failed: of one whose answer did not get through, else of one
# under way (its client may have given up before this process has heard of it), else of the last that was answered.

MOST = 4096
"""Different requests that are remembered."""
MOST_FAILED = 256
UNHEARD = (499, 504)
"""Statuses of requests that the engine may have answered without anyone to hear it."""


@dataclass
class _Alike:
    """The names of requests of the same bytes, by how far they have come; the oldest first."""

    failed: list[str] = field(default_factory=list)
    under_way: list[str] = field(default_factory=list)
    answered: str = ""


class Retries:
    """Names requests; the same name is given to a request and to its retry."""

    def __init__(self) -> None:
        self._alike: OrderedDict[str, _Alike] = OrderedDict()
        self._numbers = itertools.count(1)
        self._life = secrets.token_hex(8)
        """The engine outlives this process, and knows the names that the one before gave."""

    def name(self, key: str, path: str, body: bytes, count: str | None, idempotency: str | None) -> str:
        """The name of a request; empty where its client says neither a count of retries nor an idempotency key."""
        if idempotency:
            return digest(key, path, b"", idempotency)
        if count is None or not count.isdecimal():
            return ""
        mark = digest(key, path, body)
        alike = self._alike.setdefault(mark, _Alike())
        self._alike.move_to_end(mark)
        if len(self._alike) > MOST:
            self._alike.popitem(last=False)
        name = _earlier(alike) if int(count[:9]) else ""
        if not name:
            name = f"{mark}-{self._life}-{next(self._numbers)}"
        alike.under_way.append(name)
        return name

    def ended(self, name: str, status: int) -> None:
        """A request has ended. Of one that was refused nothing is kept: its retry is a new request."""
        alike = self._alike.get(name.partition("-")[0])
        if alike is None or name not in alike.under_way:
            return
        alike.under_way.remove(name)
        if name in alike.under_way:  # its retry goes on
            return
        if status == 200:
            alike.answered = name
        elif status in UNHEARD and len(alike.failed) < MOST_FAILED:
            alike.failed.append(name)


def _earlier(alike: _Alike) -> str:
    if alike.failed:
        return alike.failed.pop(0)
    return alike.under_way[0] if alike.under_way else alike.answered


def digest(key: str, path: str, body: bytes, idempotency: str = "") -> str:
    """The same for the same request, and of no use to anyone who sees it."""
    found = hashlib.blake2b(digest_size=16)
    for part in (key.encode(), path.encode(), idempotency.encode(), body):
        found.update(len(part).to_bytes(8, "big") + part)
    return found.hexdigest()


# What is read off a request before its body is understood: key, agent, and the body's bytes within limits.

AGENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
LONGEST_KEY = 512
PROXIES = {"forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via"}
"""Headers by which a reverse proxy is known; one that sends none of them asks for the host that it was asked for, or
for the address here, and has to keep ``/metrics`` to itself."""


def key_of(request: Request) -> str:
    """The key that the client shows. Raises ``Refusal`` where it shows none."""
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    key = bearer.strip() if scheme.lower() == "bearer" else ""
    key = key or request.headers.get("x-api-key", "").strip()
    if not key or len(key) > LONGEST_KEY:
        sentence = "A key is needed: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`."
        raise Refusal(401, "no_key", sentence)
    return key


def agent_of(request: Request) -> str:
    """The agent's name in the path; empty where it names none. Raises ``Refusal`` where that cannot be a name."""
    agent = request.path_params.get("agent", "")
    if agent and not AGENT.fullmatch(agent):
        sentence = "An agent's name has letters, digits, dots, dashes and underscores, at most 64."
        raise Refusal(404, "unknown_path", sentence)
    return str(agent)


def is_local(request: Request) -> bool:
    """Whether it comes from this machine itself, not by way of a reverse proxy, and not from a web page whose name
    leads here: both ask for a host of another name."""
    if request.client is None or PROXIES & set(request.headers.keys()):
        return False
    try:
        asked = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
        hosts = request.client.host, "127.0.0.1" if asked == "localhost" else asked
        return all(ipaddress.ip_address(host).is_loopback for host in hosts)
    except ValueError:
        return False


async def read(request: Request, body: Body, limits: Limits) -> bytes:
    """The body's bytes. Raises ``Refusal`` where they are too many, too slow, or compressed: a few bytes could hide
    more than is ever read."""
    from starlette.requests import ClientDisconnect

    encoding = request.headers.get("content-encoding", "identity")
    if encoding.strip().lower() not in ("", "identity"):
        sentence = f"The body is encoded as {encoding[:40]!r}, but is read as it comes: leave Content-Encoding out."
        raise Refusal(415, "compressed", sentence)
    said = request.headers.get("content-length", "")
    if said.isdecimal():
        body.expect(int(said[:18]))
    parts = []
    try:
        async with asyncio.timeout(limits.head_seconds):
            async for part in request.stream():
                body.add(len(part))
                parts.append(part)
    except TimeoutError:
        sentence = f"The body did not come within {limits.head_seconds:g} seconds."
        raise Refusal(408, "too_slow", sentence) from None
    except ClientDisconnect:
        raise Refusal(499, "gone", "The client went away while it sent its body.") from None
    return b"".join(parts)
