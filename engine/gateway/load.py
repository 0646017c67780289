"""How much may be under way at once: requests of each key, and bytes of all bodies. What is over is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from .answerer import Refusal
from .limits import Limits


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
