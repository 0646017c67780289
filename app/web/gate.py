"""Who may come in through the browser: a secret path that opens one session, a cookie that keeps it, and nobody else.

Pure, but that opening the path uses it up; knows no web server. Whoever can reach the port may be another user of this
machine, or a page in the person's own browser. A browser sends its cookies to every port of a host: ours is for the
secret path alone, which no other server there knows.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, field
from enum import Enum, auto

LOCAL = ("127.0.0.1", "localhost", "[::1]")
"""Names under which a browser may know this server, behind an SSH tunnel too: a foreign name means that a foreign page
has made its own name point here."""


class Verdict(Enum):
    """What becomes of a request."""

    PASS = auto()
    OPEN = auto()
    """It is the first at the secret path: it gets the cookie, and is sent there again."""
    REFUSE = auto()


@dataclass(frozen=True)
class Asked:
    """A request, as far as it matters here; what it does not say is empty."""

    host: str
    """The header of that name: with the port."""
    path: str
    origin: str = ""
    """Which page a websocket is opened from."""
    cookies: tuple[str, ...] = ()
    """All values under the cookie's name: other servers of the host may have set some, too."""
    websocket: bool = False


@dataclass
class Gate:
    """The door of one server."""

    secret: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    """The path, which opens one session, once."""
    session: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    """The cookie's value from then on."""
    used: bool = False

    @property
    def root(self) -> str:
        """The path beneath which everything lies, and for which the cookie is."""
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
    """In a time that does not say how much of it is right."""
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode())
