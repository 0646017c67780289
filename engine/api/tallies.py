"""What clients' keys have used, gathered and written once a second."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from ..errors import StoreError
from ..store import KeyUse

INTERVAL = 1.0


class Tallies:
    """Adds up by key; what cannot be written waits for the next time."""

    def __init__(self, write: Callable[[Iterable[KeyUse]], None], now: Callable[[], float] = time.time) -> None:
        """``write`` is one transaction; may raise ``StoreError``."""
        self._write = write
        self._now = now
        self._uses: dict[int, KeyUse] = {}

    def add(self, key: int, tokens_in: int = 0, tokens_out: int = 0, requests: int = 1) -> None:
        """A key was used just now."""
        use = self._uses.get(key) or KeyUse(key, 0, 0, 0, 0.0)
        self._uses[key] = replace(
            use,
            requests=use.requests + requests,
            tokens_in=use.tokens_in + tokens_in,
            tokens_out=use.tokens_out + tokens_out,
            last=self._now(),
        )

    def flush(self) -> None:
        """Write what has come together. Raises ``StoreError``, and keeps it then."""
        if self._uses:
            self._write(self._uses.values())
            self._uses = {}

    async def run(self) -> None:
        """Write once a second, until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL)
            with contextlib.suppress(StoreError):
                self.flush()
