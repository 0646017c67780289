"""The gateways of an engine: one, unless clients and episodes need different addresses.

Episodes are reached at 127.0.0.1 alone. They share the clients' gateway where that listens on this machine, and have
one of their own, at a free port, where the API is closed or other machines reach it.
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
        self._running: list[GatewayProcess] = []
        self._desk = desk
        self._limits = limits
        self._log = log
        self._one_at_a_time = asyncio.Lock()

    async def for_episodes(self) -> GatewayProcess:
        """The gateway for an episode that begins. Raises ``ConfigError`` where none can be started."""
        async with self._one_at_a_time:
            local = [gateway for gateway in self._running if gateway.local]
            found = local[-1] if local else await self._start(LOCAL, 0)
            found.used = True
            return found

    async def for_clients(self, host: str, port: int, patience: float = 0.0) -> GatewayProcess:
        """The gateway for clients at an address, in place of that before; a taken port is tried again for ``patience``
        seconds. Raises ``ConfigError``."""
        host = LOCAL if host == "localhost" else host
        async with self._one_at_a_time:
            there = [gateway for gateway in self._running if gateway.asked == (host, port)]
            found = there[-1] if there else await self._start(host, port, patience)
            if self.clients is not found:
                await self._leave()
                self.clients = found
            return found

    async def close_clients(self) -> None:
        """End the clients' gateway, unless episodes were given its address."""
        async with self._one_at_a_time:
            await self._leave()

    async def stop(self) -> None:
        """End all."""
        async with self._one_at_a_time:
            self.clients = None
            while self._running:
                await self._running.pop().stop()

    async def _leave(self) -> None:
        gateway, self.clients = self.clients, None
        if gateway is not None and not gateway.used:
            self._running.remove(gateway)
            await gateway.stop()

    async def _start(self, host: str, port: int, patience: float = 0.0) -> GatewayProcess:
        check_installed()
        listening = await _listening(host, port, patience)
        started = GatewayProcess(listening, (host, port), self._limits, self._log, self._desk)
        self._running.append(started)
        return started


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
