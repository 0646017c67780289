"""The gateways of an engine: one for clients while the API is open, and one for episodes, once one asks for an address.

They share nothing but the engine, so that no crowd of clients keeps an episode's program from its model. Episodes are
reached at 127.0.0.1 alone, at a free port.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from importlib.util import find_spec
from pathlib import Path
from time import monotonic

from ..errors import ConfigError
from .link import Desk
from .process import GatewayProcess

LOCAL = "127.0.0.1"
NEEDS = ("starlette", "uvicorn")
PATIENCE = 5.0
"""Seconds for which an engine that starts tries a taken port again: the gateway of one that was killed still ends."""
AGAIN = 0.1
WAITING = 1024
"""Connections that wait in a socket's line while a gateway starts."""


class Gateways:
    """Starts gateways and ends them."""

    def __init__(self, desk: Desk, limits: str, log: Path) -> None:
        self.clients: GatewayProcess | None = None
        """Where clients ask while the API is open."""
        self._episodes: GatewayProcess | None = None
        self._desk = desk
        self._limits = limits
        self._log = log
        self._one_at_a_time = asyncio.Lock()

    async def for_episodes(self) -> GatewayProcess:
        """The gateway for an episode that begins. Raises ``ConfigError`` where none can be started."""
        async with self._one_at_a_time:
            if self._episodes is None:
                self._episodes = await self._start(LOCAL, 0)
            return self._episodes

    async def for_clients(self, host: str, port: int, patience: float = 0.0) -> GatewayProcess:
        """The gateway for clients at an address, in place of that before; a taken port is tried again for ``patience``
        seconds. Raises ``ConfigError``."""
        host = LOCAL if host == "localhost" else host
        async with self._one_at_a_time:
            before = self.clients
            if before is not None and before.asked == (host, port):
                return before
            self.clients = found = await self._start(host, port, patience)
            if before is not None:
                await before.stop()
            return found

    async def close_clients(self) -> None:
        """End the clients' gateway."""
        async with self._one_at_a_time:
            gateway, self.clients = self.clients, None
            if gateway is not None:
                await gateway.stop()

    async def stop(self) -> None:
        """End both."""
        async with self._one_at_a_time:
            running = [gateway for gateway in (self.clients, self._episodes) if gateway is not None]
            self.clients = self._episodes = None
            await asyncio.gather(*(gateway.stop() for gateway in running))

    async def _start(self, host: str, port: int, patience: float = 0.0) -> GatewayProcess:
        check_installed()
        listening = await _listening(host, port, patience)
        return GatewayProcess(listening, (host, port), self._limits, self._log, self._desk)


def check_installed() -> None:
    """Raise ``ConfigError`` where what the gateway needs is not installed."""
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"The API needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed.",
            "Install the extra: `make install EXTRAS=api`, or `pip install 'marlaas[api]'`.",
        )


async def _listening(host: str, port: int, patience: float) -> socket.socket:
    """A socket that listens; waits ``patience`` seconds for a port that is taken. Raises ``ConfigError``."""
    until = monotonic() + patience
    while True:
        try:
            return _bound(host, port)
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            if not taken or monotonic() >= until:
                cause = "another program has this port" if taken else error.strerror or str(error)
                raise ConfigError(
                    f"The API cannot listen at {host}, port {port}: {cause}.",
                    "`marlaas api start --port 0` takes a free one; [api] in marlaas.toml has `listen` and `port`.",
                ) from error
        await asyncio.sleep(AGAIN)


def _bound(host: str, port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(WAITING)
    except BaseException:
        listening.close()
        raise
    return listening
