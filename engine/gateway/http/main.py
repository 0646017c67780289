"""The gateway's main program: ``python -P -m marlaas.engine.gateway.http.main LINK LISTEN LIMITS``.

LINK is one end of a socketpair, LISTEN a bound listening socket, both inherited as file descriptors; LIMITS is JSON of
``limits.Limits``. The process ends when the engine closes the link or dies; open requests get a 503 first.
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
from collections.abc import Iterator

from ..limits import Limits, decode

PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Serve until the engine goes away."""
    link, listen, told = arguments
    limits = decode(told)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine handles Ctrl-C and ends its processes in order
    if sys.platform == "linux":  # elsewhere the closed link ends it
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    _open_files(limits.files)
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # our own log is enough
    asyncio.run(serve(socket.socket(fileno=int(link)), socket.socket(fileno=int(listen)), limits))


def _open_files(wanted: int) -> None:
    """Raise the limit of open files, as far as the system allows: a connection is one."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY:
        wanted = min(wanted, most)
    if now != resource.RLIM_INFINITY and wanted > now:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


async def serve(link: socket.socket, listen: socket.socket, limits: Limits) -> None:
    """Answer requests on a listening socket until the other end of the link is closed."""
    import uvicorn

    from .app import Gateway
    from .link import Link
    from .protocol import config_of

    class Server(uvicorn.Server):
        """uvicorn's server without signal handlers."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    client = Link()
    gateway = Gateway(client, limits)
    server = Server(config_of(gateway.application(), limits, gateway.crowded))
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


if __name__ == "__main__":
    main(sys.argv[1:])
