"""Decides who may use the application in a browser: a secret path opens one session, and a cookie keeps it open.

Pure, except that opening the path uses it up; knows no web server. Whoever can reach the port may be another user of
this machine, or a page in the person's own browser. A browser sends its cookies to every port of a host: ours is for
the secret path alone, which no other server there knows.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, field
from enum import Enum, auto

LOCAL = ("127.0.0.1", "localhost", "[::1]")
"""Names by which a browser may address this server, also behind an SSH tunnel.

Another name means that a foreign page has made its own name point here.
"""


class Verdict(Enum):
    """What is done with a request."""

    PASS = auto()
    OPEN = auto()
    """The first request at the secret path: it gets the cookie, and is redirected there."""
    REFUSE = auto()


@dataclass(frozen=True)
class Asked:
    """The parts of a request that matter here; missing ones are empty."""

    host: str
    """The header of that name, with the port."""
    path: str
    origin: str = ""
    """The page that opens a websocket."""
    cookies: tuple[str, ...] = ()
    """All values under the cookie's name: other servers of the host may have set some as well."""
    websocket: bool = False


@dataclass
class Gate:
    """Guards one server."""

    secret: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    """The secret path, which opens one session, once."""
    session: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    """The cookie's value."""
    used: bool = False

    @property
    def root(self) -> str:
        """The path that all addresses begin with, and that the cookie is for."""
        return f"/{self.secret}/"

    def judge(self, asked: Asked) -> Verdict:
        """Let a request pass, open the session, or refuse."""
        if _name(asked.host) not in LOCAL or (asked.websocket and asked.origin != f"http://{asked.host}"):
            return Verdict.REFUSE
        if not _equal(asked.path[: len(self.root)], self.root):
            return Verdict.REFUSE
        if self.used and any(_equal(cookie, self.session) for cookie in asked.cookies):
            return Verdict.PASS
        if not self.used and not asked.websocket and len(asked.path) == len(self.root):
            self.used = True
            return Verdict.OPEN
        return Verdict.REFUSE


def cookies(header: str, name: str) -> tuple[str, ...]:
    """The values under one name in a header ``Cookie``."""
    pairs = (pair.strip().partition("=") for pair in header.split(";"))
    return tuple(value for key, _, value in pairs if key == name)


def _name(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isascii() and port.isdigit() else host).lower()


def _equal(one: str, other: str) -> bool:
    """Whether two texts are equal, in a time that does not depend on how much of them is."""
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode())
