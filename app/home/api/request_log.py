"""The log of requests as the gateway writes it: what was asked with which key, and what became of it.

A line that is none of the gateway's is left out. What clients sent is hostile; it is cleaned where it is drawn.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from ..log_files import LogLine

FILE = "api.log"
MOST = 1000
"""Requests that are kept, the newest."""


@dataclass(frozen=True)
class Request:
    """One request that has ended."""

    key: str
    """How the key that was shown begins; empty where none was."""
    when: float
    """Seconds of the epoch at which it began."""
    route: str
    model: str
    status: int
    """As in HTTP; 499 where the client went away."""
    error: str
    """Code of the refusal; empty where it was answered."""
    seconds: float
    tokens: tuple[int, int]
    """Read and sampled."""


def requests_in(lines: Iterable[LogLine]) -> tuple[Request, ...]:
    """The newest requests, the newest first."""
    found = [request for line in [*lines][-MOST:] if (request := _read(line.text)) is not None]
    return tuple(reversed(found))


def _read(text: str) -> Request | None:
    try:
        told = json.loads(text)
        seconds = float(told.get("ms", 0.0)) / 1000
        return Request(
            key=str(told.get("key", "")),
            when=datetime.fromisoformat(told["time"]).timestamp(),
            route=str(told["route"]),
            model=str(told.get("model", "")),
            status=int(told.get("status", 0)),
            error=str(told.get("error", "")),
            seconds=seconds if math.isfinite(seconds) else 0.0,
            tokens=(int(told.get("prompt_tokens", 0)), int(told.get("completion_tokens", 0))),
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None
