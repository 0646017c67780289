"""The gateway's limits for its clients, which the engine passes as JSON."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For the whole process by default."""

    body_bytes: int = 16 << 20
    """Of one request; a larger one is refused with 413."""
    seconds: float = 600.0
    """From a request's head to the end of its answer; a longer one is cancelled, with 504."""
    head_seconds: float = 30.0
    """For a client to send a request's head, and again its body; a slower one is ended, with 408."""
    connections: int = 1024
    """Open at once; further requests are refused with 503."""
    log_prompts: bool = False
    """True if the log has the texts of clients and models."""
    log: str = ""
    """File for a line of JSON per request; empty for standard error."""

    @property
    def most_connections(self) -> int:
        """Beyond these a connection is closed without an answer."""
        return 4 * self.connections

    @property
    def files(self) -> int:
        return self.most_connections + 64

    @property
    def bodies_bytes(self) -> int:
        """Of all bodies in progress at once; more are refused with 503."""
        return 8 * self.body_bytes
