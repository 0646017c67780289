"""``python -P -m marlaas.plugins.host FD PATH MEMORY_MB PARENT NICE PULSE``: started by the engine.

FD and PULSE are sockets (``meter.Watchdog``), PARENT is the engine's process id; MEMORY_MB and NICE: see ``limits``.
"""

from __future__ import annotations

import asyncio
import io
import os
import socket
import sys
from pathlib import Path

from .channel import Channel
from .limits import apply
from .process import PluginHost


async def _serve(connection: socket.socket, pulse: socket.socket, path: str) -> None:
    host = PluginHost(Path(path), pulse)
    _, channel = await asyncio.get_running_loop().create_connection(
        lambda: Channel(host.receive, host.closed), sock=connection
    )
    await host.serve(channel)


def main() -> None:
    """Serve one snapshot until the engine closes the connection."""
    descriptor, path, memory_mb, parent, nice, pulse = sys.argv[1:]
    for one in (descriptor, pulse):
        os.set_inheritable(int(one), False)  # a program that outlives this process must not keep the socket open
    apply(int(memory_mb), int(parent), int(nice))
    # A snapshot is named by its content: cached bytecode could only be wrong.
    sys.dont_write_bytecode = True
    sys.argv = [path]
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # output survives a crash
    asyncio.run(_serve(socket.socket(fileno=int(descriptor)), socket.socket(fileno=int(pulse)), path))
    # Nothing of the plugin may keep the process alive.
    sys.stdout.flush()
    os._exit(0)


main()
