"""A tool that environments call over HTTP: a calculator in its own process, as slow as the caller says.

``GET /add?left=47&right=85&said=132&wait=0.4`` is answered after 0.4 s with ``{"sum": 132, "right": true}``. A service
on another machine takes its time without this one's processors; so does this one, which computes for microseconds.

    python -m benchmarks.machinery.tool_server PORT
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import parse_qs, urlsplit

from .. import ROOT

HOST = "127.0.0.1"
PATIENCE = 30.0
"""Seconds that the server gets to listen."""


@contextmanager
def tool_server() -> Iterator[str]:
    """A server as long as the block runs; the address is HOST:PORT. Raises ``RuntimeError`` if none comes up."""
    with socket.create_server((HOST, 0)) as probe:
        port = probe.getsockname()[1]
    server = subprocess.Popen([sys.executable, "-m", "benchmarks.machinery.tool_server", str(port)], cwd=ROOT)
    try:
        _wait(server, port)
        yield f"{HOST}:{port}"
    finally:
        server.terminate()
        server.wait()


def _wait(server: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with socket.create_connection((HOST, port), timeout=1.0):
                return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"The tool's server does not listen on {HOST}:{port}.")


def answer(target: str) -> tuple[float, str]:
    """Seconds to wait and the body of the answer for a request's target. Raises ``ValueError`` or ``KeyError``."""
    asked = {name: values[0] for name, values in parse_qs(urlsplit(target).query, strict_parsing=True).items()}
    total = int(asked["left"]) + int(asked["right"])
    return float(asked["wait"]), json.dumps({"sum": total, "right": asked.get("said", "") == str(total)})


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of one connection, one after the other."""
    try:
        while request := await reader.readline():
            while (await reader.readline()).strip():
                pass  # headers
            try:
                wait, body = answer(request.decode().split()[1])
                status = "200 OK"
            except (ValueError, KeyError, IndexError) as error:
                wait, body, status = 0.0, json.dumps({"error": str(error)}), "400 Bad Request"
            await asyncio.sleep(wait)
            writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
            await writer.drain()
    except ConnectionError:
        pass  # an episode that was ended meanwhile
    finally:
        writer.close()


async def main(port: int) -> None:
    """Serve until the process is ended."""
    server = await asyncio.start_server(serve, HOST, port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
