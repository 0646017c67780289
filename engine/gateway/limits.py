"""What the gateway allows its clients; the engine gives it as JSON when it starts the process."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes, seconds and numbers, each for the whole process unless it says otherwise."""

    body_bytes: int = 16 << 20
    """Of one request; a larger one is refused with 413."""
    seconds: float = 600.0
    """From a request's head to the end of its answer; one that takes longer is cancelled, with 504."""
    head_seconds: float = 30.0
    """Within which a client sends a request's head, and again its body; what is slower is ended, with 408."""
    connections: int = 1024
    """Open at once; on more, requests are refused with 503."""
    log_prompts: bool = False
    """Whether the log has what clients and models say."""
    log: str = ""
    """File for a line of JSON per request; empty for standard error."""

    @property
    def most_connections(self) -> int:
        """Beyond these a connection is closed without a word."""
        return 4 * self.connections

    @property
    def files(self) -> int:
        """That the process may have to have open at once."""
        return self.most_connections + 64

    @property
    def bodies_bytes(self) -> int:
        """Of all bodies that are being read or asked about at once; more are refused with 503."""
        return 8 * self.body_bytes


def encode(limits: Limits) -> str:
    """As JSON, for the process's third argument."""
    return msgspec.json.encode(limits).decode()


def decode(text: str) -> Limits:
    """The limits in this JSON. Raises ``msgspec.ValidationError`` or ``msgspec.DecodeError``."""
    return msgspec.json.decode(text, type=Limits)
