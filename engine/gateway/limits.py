"""The gateway's limits, passed by the engine as JSON."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For the whole process by default."""

    body_bytes: int = 16 << 20
    """Of one request; more gets 413."""
    seconds: float = 600.0
    """From a request's head to its answer's end; more gets 504."""
    head_seconds: float = 30.0
    """For a request's head, and again its body; more gets 408."""
    connections: int = 1024
    """Open at once; more gets 503."""
    log_prompts: bool = False
    log: str = ""
    """A line of JSON per request; empty: standard error."""

    @property
    def most_connections(self) -> int:
        """More are closed without an answer."""
        return 4 * self.connections

    @property
    def files(self) -> int:
        return self.most_connections + 64

    @property
    def bodies_bytes(self) -> int:
        """In progress; more gets 503."""
        return 8 * self.body_bytes
