"""Who may come in through the browser: a token that opens one session, a cookie that keeps it, and nobody else.

What a request says of itself flows in, a verdict flows out. Pure but for the token's being used up; knows no web
server. Whoever can reach the port may be another user of this machine, or a page in the person's own browser.
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
    """It brought the token: it gets the cookie, and is sent to the address without the token."""
    REFUSE = auto()


@dataclass(frozen=True)
class Asked:
    """A request, as far as it matters here; what it does not say is empty."""

    host: str
    """The header of that name: with the port."""
    origin: str = ""
    """Which page a websocket is opened from."""
    cookie: str = ""
    token: str = ""
    websocket: bool = False


@dataclass
class Gate:
    """The door of one server."""

    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    """Opens one session, once."""
    session: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    """The cookie's value from then on."""
    used: bool = False

    def judge(self, asked: Asked) -> Verdict:
        """Let a request pass, open the session, or refuse."""
        if _name(asked.host) not in LOCAL or (asked.websocket and asked.origin != f"http://{asked.host}"):
            return Verdict.REFUSE
        if self.used and _equal(asked.cookie, self.session):
            return Verdict.OPEN if asked.token else Verdict.PASS  # the same address again, in the same browser
        if not self.used and not asked.websocket and _equal(asked.token, self.token):
            self.used = True
            return Verdict.OPEN
        return Verdict.REFUSE


def _name(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isascii() and port.isdigit() else host).lower()


def _equal(one: str, other: str) -> bool:
    """In a time that does not say how much of it is right."""
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode())
