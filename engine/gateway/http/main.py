"""The gateway: ``python -P -m marlaas.engine.gateway.http.main LINK LISTEN LIMITS``.

LINK (a socketpair's end) and LISTEN (a bound socket) are inherited file descriptors; LIMITS is JSON of
``limits.Limits``. It ends with the link or the engine; open requests get 503 first.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import resource
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import h11
import msgspec
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..limits import Limits
from .app import Gateway
from .link import Link

PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Serve until the engine is gone."""
    link, listen, told = arguments
    limits = msgspec.json.decode(told, type=Limits)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine handles Ctrl-C and ends its processes in order
    if sys.platform == "linux":  # elsewhere the closed link ends it
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = limits.files if hard == resource.RLIM_INFINITY else min(limits.files, hard)
    if resource.RLIM_INFINITY != soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # our own log is enough
    asyncio.run(serve(socket.socket(fileno=int(link)), socket.socket(fileno=int(listen)), limits))


async def serve(link: socket.socket, listen: socket.socket, limits: Limits) -> None:
    """Serve until the link is closed."""

    class Server(uvicorn.Server):
        """uvicorn's server without signal handlers."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    client = Link()
    gateway = Gateway(client, limits)
    server = Server(config_of(gateway.application, limits, gateway.crowded))
    linked = asyncio.create_task(client.serve(link))
    serving = asyncio.create_task(server.serve(sockets=[listen]))
    try:
        await asyncio.wait((linked, serving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        server.should_exit = True
        await serving
        linked.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await linked
        gateway.log.close()


# uvicorn's own protocol waits forever for the first head, and refuses in plain text without a time for another try.

Application = Callable[..., Awaitable[None]]


def patient(limits: Limits, crowded: Application) -> type[H11Protocol]:
    """``crowded`` answers surplus connections."""

    class Patient(H11Protocol):
        """Closes idle connections without a request."""

        _patience: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
            super().connection_made(transport)
            if len(self.connections) > limits.most_connections:
                transport.abort()
            elif len(self.connections) > limits.connections:
                self.app = crowded
            self._wait()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._busy or self._patience is None:
                self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            if self._patience is not None:
                self._patience.cancel()

        def send_400_response(self, msg: str) -> None:
            if self._busy:  # its body is wrong after a valid head: end the answer
                self.cycle.disconnected = True
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                super().send_400_response(msg)
            else:  # an answer has begun
                self.transport.abort()

        @property
        def _busy(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def _wait(self) -> None:
            if self._patience is not None:
                self._patience.cancel()
            self._patience = None if self._busy else self.loop.call_later(limits.head_seconds, self.transport.abort)

    return Patient


def config_of(application: Any, limits: Limits, crowded: Application) -> Any:
    """uvicorn's settings."""
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


if __name__ == "__main__":
    main(sys.argv[1:])
