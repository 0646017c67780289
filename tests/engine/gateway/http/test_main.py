"""The gateway as the process that the engine starts."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from marlaas.engine import wire
from marlaas.engine.gateway.limits import Limits

from .scripted import KEY

pytestmark = pytest.mark.processes


@contextmanager
def started() -> Iterator[tuple[subprocess.Popen[bytes], socket.socket, int]]:
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.create_server(("127.0.0.1", 0)) as listen:
        words = [str(theirs.fileno()), str(listen.fileno()), msgspec.json.encode(Limits(seconds=20)).decode()]
        command = [sys.executable, "-P", "-m", "marlaas.engine.gateway.http.main", *words]
        process = subprocess.Popen(command, pass_fds=(theirs.fileno(), listen.fileno()))
        theirs.close()
        try:
            yield process, ours, listen.getsockname()[1]
        finally:
            process.kill()
            process.wait()


def test_it_answers_and_ends_with_its_link() -> None:
    with started() as (process, link, port):
        body = json.dumps({"model": "base", "prompt": "Hi"}).encode()
        with socket.create_connection(("127.0.0.1", port)) as client:
            head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
            client.sendall(head.encode() + f"Authorization: Bearer {KEY}\r\n\r\n".encode() + body)
            with link.makefile("rb") as frames:
                asked = wire.request(frames.read(wire.length(frames.read(4))))
            assert isinstance(asked, wire.Complete) and asked.prompts == ("Hi",)
            link.sendall(wire.frame(wire.Answered((wire.Choice(0, "there", "stop"),), "base", 1, 1, id=asked.id)))
            answer = b"".join(iter(lambda: client.recv(1 << 16), b""))
        assert answer.startswith(b"HTTP/1.1 200 OK") and b'"text":"there"' in answer
        link.close()
        assert process.wait(timeout=30) == 0


def test_what_the_engine_imports_of_it_is_light() -> None:
    code = "import sys; from marlaas.engine import wire; from marlaas.engine.gateway import limits; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert not {"starlette", "uvicorn", "h11", "asyncio"} & set(done.stdout.split())


def test_it_may_open_as_many_files_as_it_has_connections() -> None:
    limits = Limits(connections=30)
    code = (
        "import resource as r; from marlaas.engine.gateway.http import main as m;"
        "r.setrlimit(r.RLIMIT_NOFILE, (64, {most}));"
        "m._open_files({files}); print(*r.getrlimit(r.RLIMIT_NOFILE))"
    )
    for most, now in ((limits.files + 1, limits.files), (100, 100)):
        told = [sys.executable, "-P", "-c", code.format(most=most, files=limits.files)]
        done = subprocess.run(told, capture_output=True, text=True, check=True)
        assert done.stdout.split() == [str(now), str(most)]
