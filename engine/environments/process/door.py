"""The way to the gateway for a process without a network: a Unix socket in the folder that it sees, and TCP behind it.

What a confined plugin reaches so is the gateway alone, which asks for a key. In the plugin's process an address leads
to the socket: see ``plugins.programs.forwarder``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from pathlib import Path
from urllib.parse import urlsplit

from marlaas.plugins.programs.forwarder import Connection, Passing

from ...errors import EnvironmentFailure


class Door:
    """One socket in a folder, which is opened when it is first needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name = f"gateway-{secrets.token_hex(4)}.sock"
        self._address = ("", 0)
        self._passing = Passing(self._connect)
        self._server: asyncio.Server | None = None
        self._opening = asyncio.Lock()

    async def open(self, url: str) -> str:
        """The name of the socket in its folder, behind which the server of ``url`` is.

        Raises ``EnvironmentFailure`` where none can be made.
        """
        where = urlsplit(url)
        self._address = (where.hostname or "", where.port or 0)
        async with self._opening:
            if self._server is None:
                try:
                    self._server = await asyncio.start_unix_server(self._passing.accept, sock=self._bound())
                except OSError as error:
                    raise EnvironmentFailure(
                        f"No socket to the gateway can be made in {self._folder}: {error}"
                    ) from error
        return self._name

    def close(self) -> None:
        """Nobody comes any more."""
        self._passing.close()
        if self._server is not None:
            self._server.close()
            self._server = None
            with contextlib.suppress(OSError):
                (self._folder / self._name).unlink()

    async def _connect(self) -> Connection:
        return await asyncio.open_connection(*self._address)

    def _bound(self) -> socket.socket:
        """The socket: over a descriptor, because its path has 108 characters at most."""
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                listening.bind(f"/proc/self/fd/{folder}/{self._name}")
            except OSError:
                listening.close()
                raise
            return listening
        finally:
            os.close(folder)
