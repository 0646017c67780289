"""Limits of connections: slow heads, too many connections, and input that is not HTTP.

uvicorn's own protocol waits forever for the first head, and refuses in plain text without a time for another try.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from ...wire import Refusal
from ..limits import Limits
from . import exchange

Application = Callable[..., Awaitable[None]]


def patient(limits: Limits, crowded: Application) -> type[H11Protocol]:
    """A protocol for these limits; ``crowded`` answers on connections that are too many."""

    class Patient(H11Protocol):
        """uvicorn's protocol that closes idle connections without a request."""

        _patience: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
            super().connection_made(transport)
            if len(self.connections) > limits.most_connections:
                transport.abort()
            elif len(self.connections) > limits.connections:
                self.app = crowded
            self._patience = self.loop.call_later(limits.head_seconds, self._close)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._busy:
                self._rest()
            elif self._patience is None:
                self._patience = self.loop.call_later(limits.head_seconds, self._close)

        def connection_lost(self, exc: Exception | None) -> None:
            self._rest()
            super().connection_lost(exc)

        def send_400_response(self, msg: str) -> None:
            """Refuse input that is not HTTP, unless an answer has begun."""
            path, names = "", set[str]()
            if self._busy:  # its body is wrong after a valid head: end the answer
                self.cycle.disconnected = True
                path, names = self.scope["path"], {name.decode("latin-1") for name, _ in self.headers}
            if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
                self.transport.abort()
                return
            refusal = Refusal(400, "invalid_http", "What was sent is no HTTP request: its head or its body is broken.")
            body = msgspec.json.encode(exchange.body(refusal, exchange.form_of(path, names)))
            told = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close"}
            head = h11.Response(status_code=400, headers=list(told.items()), reason=b"Bad Request")
            for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
            self.transport.close()

        @property
        def _busy(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def _rest(self) -> None:
            if self._patience is not None:
                self._patience.cancel()
                self._patience = None

        def _close(self) -> None:
            self._patience = None
            if not self._busy:
                self.transport.abort()

    return Patient


def config_of(application: Any, limits: Limits, crowded: Application) -> Any:
    """uvicorn's settings."""
    import uvicorn

    return uvicorn.Config(
        application,
        http=patient(limits, crowded),
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=max(5, int(limits.head_seconds)),
        timeout_graceful_shutdown=1,
    )
