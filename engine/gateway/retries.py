"""Which request is another's retry, and what the two have in common.

The clients of OpenAI and Anthropic count retries in a header, and send the same bytes again. Requests of the same bytes
are alike, so a retry takes the place of one that failed: of one whose answer did not get through, else of one under
way (its client may have given up before this process has heard of it), else of the last that was answered.
"""

from __future__ import annotations

import hashlib
import itertools
import secrets
from collections import OrderedDict
from dataclasses import dataclass, field

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
