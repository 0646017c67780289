"""Reads a request up to its body's bytes, within the gateway's limits."""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ...wire import Refusal
from ..limits import Limits

if TYPE_CHECKING:
    from starlette.requests import Request


class Load:
    """Counts the work in progress."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._bytes = 0
        self.requests = 0

    @contextmanager
    def body(self) -> Iterator[Body]:
        body = Body(self, self._limits)
        try:
            yield body
        finally:
            self.hold(-body.bytes)

    def hold(self, size: int) -> None:
        """Count bytes; negative ones are released. Raises ``Refusal`` if all bodies together are too large."""
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
        """Check the announced size. Raises ``Refusal``."""
        if size > self._most:
            raise Refusal(413, "too_large", f"The body has more than {self._most:,} bytes, the most that is read.")

    def add(self, size: int) -> None:
        self.expect(self.bytes + size)
        self._load.hold(size)
        self.bytes += size


# Reads key, agent, and the body's bytes within limits.

AGENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
LONGEST_KEY = 512
PROXIES = {"forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via"}
"""Headers that show a reverse proxy. One without them keeps the host name or uses the address here, and must block
``/metrics`` itself.
"""


def key_of(request: Request) -> str:
    """The client's key. Raises ``Refusal`` without one."""
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    key = bearer.strip() if scheme.lower() == "bearer" else ""
    key = key or request.headers.get("x-api-key", "").strip()
    if not key or len(key) > LONGEST_KEY:
        sentence = "A key is needed: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`."
        raise Refusal(401, "no_key", sentence)
    return key


def agent_of(request: Request) -> str:
    """The agent's name in the path; may be empty. Raises ``Refusal`` for an invalid name."""
    agent = request.path_params.get("agent", "")
    if agent and not AGENT.fullmatch(agent):
        sentence = "An agent's name has letters, digits, dots, dashes and underscores, at most 64."
        raise Refusal(404, "unknown_path", sentence)
    return str(agent)


def is_local(request: Request) -> bool:
    """True for a request from this machine, not through a reverse proxy or a web page with a name that leads here: both
    use another host name.
    """
    if request.client is None or PROXIES & set(request.headers.keys()):
        return False
    try:
        asked = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
        hosts = request.client.host, "127.0.0.1" if asked == "localhost" else asked
        return all(ipaddress.ip_address(host).is_loopback for host in hosts)
    except ValueError:
        return False


async def read(request: Request, body: Body, limits: Limits) -> bytes:
    """The body's bytes.

    Raises ``Refusal`` if they are too many, too slow, or compressed: a few bytes could expand without limit.
    """
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
