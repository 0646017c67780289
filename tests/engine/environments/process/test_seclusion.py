"""Behind bwrap, where this machine lets it work: what a plugin cannot reach, and that it is watched as any other."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from marlaas.engine.environments.dependencies.interpreters import Interpreters
from marlaas.engine.environments.process import child
from marlaas.engine.environments.process.launch import obstacle
from marlaas.engine.environments.protocol import Answering, Listener
from marlaas.engine.environments.service import EnvironmentService
from marlaas.engine.home.settings import EnvironmentSettings
from marlaas.plugins import Endpoint

from ..conftest import World, a_spec, echoing

pytestmark = pytest.mark.processes

SPY = """\
import os
import socket
import subprocess
from pathlib import Path

from marlaas.plugins import env


def outcome(call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        return type(error).__name__
    return "done"


@env
async def spy(ep, port: int, secret: str, engine: int):
    await ep.ask("x")
    Path("mine").write_text("here")
    ep.log(
        network=outcome(socket.create_connection, ("127.0.0.1", port), 1),
        secret=outcome(Path(secret).read_text),
        elsewhere=outcome(Path(__file__).with_name("x").touch),
        engine=outcome(os.kill, engine, 0),
        home=float(len(os.listdir(Path.home()))),
        mine=Path("mine").read_text(),
    )
    return 1.0


@env
async def spins(ep):
    await ep.ask("x")
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    while "no await in here":
        pass
"""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """Its plugins are confined."""
    if reason := obstacle():
        pytest.skip(reason)
    made = World(tmp_path / "plugins", tmp_path / "home" / "scratch")
    made.folder.mkdir()
    interpreters = Interpreters(tmp_path / "home" / "venvs", EnvironmentSettings(sandbox=True))
    made.service = EnvironmentService([made.folder], made.scratch, made.hear, interpreters=interpreters)
    made.save("spy.py", SPY)
    await made.service.start()
    yield made
    await made.service.stop()


async def test_what_it_cannot_reach(world: World) -> None:
    secret = world.folder.parent / "home" / "marlaas.db"
    secret.write_text("all results")
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    outcome = await world.play("spy/spy", port=port, secret=str(secret), engine=os.getpid())
    server.close()
    assert outcome.status == "ok", outcome.failure
    reached = dict(outcome.metrics)
    assert reached.pop("network") in ("ConnectionRefusedError", "OSError")
    assert reached.pop("elsewhere") in ("OSError", "PermissionError")
    assert reached == {"secret": "FileNotFoundError", "engine": "ProcessLookupError", "home": 1.0, "mine": "here"}


async def test_a_blocked_process_is_interrupted_and_all_ends(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "BEAT", 0.4)  # a host takes a ping a second for granted, so it needs a little
    outcome = await world.play("spy/spins")
    assert outcome.status == "timeout" and outcome.failure is not None
    spin = 1 + SPY.splitlines().index('    while "no await in here":')
    assert outcome.failure.file == "spy.py" and outcome.failure.line in (spin, spin + 1)
    ((_, pid),) = world.service.processes()
    watched = [os.pidfd_open(below) for below in family(pid)]
    assert len(watched) == 4, "bwrap twice, the host, and what it started"
    await world.service.stop()
    for descriptor in watched:
        await readable(descriptor)
        os.close(descriptor)


PROGRAM = """\
from marlaas.plugins import env

AGENT = '''
import os, socket, sys
from urllib.request import urlopen
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[1])), 1)
except OSError:
    print(urlopen(os.environ["OPENAI_BASE_URL"] + "/who").read().decode())
'''


@env.program(["python", "agent.py", "{config[port]}"], files={"agent.py": AGENT})
async def asks(ep, run, port: int):
    again = await ep.endpoint()
    ep.log(said=run.stdout, address=again.url)
    return 1.0
"""


async def test_a_program_without_a_network_finds_its_model(world: World) -> None:
    """Nothing else, not even at the port where the model is."""
    heard: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nthe model")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def opens(listener: Listener) -> Endpoint:
        return Endpoint(f"http://127.0.0.1:{port}/v1", "the key")

    world.save("asks.py", PROGRAM)
    await world.until("loaded", "asks")
    with await world.service.bind("asks/asks") as lease:
        outcome = await world.service.play(lease, a_spec(port=port), Answering(echoing, endpoint=opens))
    server.close()
    assert outcome.status == "ok", outcome.failure
    metrics = dict(outcome.metrics)
    assert metrics["said"] == "the model\n" and str(port) not in str(metrics["address"])
    assert len(heard) == 1 and heard[0].startswith(b"GET /v1/who HTTP/1.1")


ENGINE = """
import asyncio, sys
from pathlib import Path
from marlaas.engine.home.settings import EnvironmentSettings
from marlaas.engine.environments.dependencies.interpreters import Interpreters
from marlaas.engine.environments.service import EnvironmentService

async def main():
    folder = Path(sys.argv[1])
    interpreters = Interpreters(folder / "home" / "venvs", EnvironmentSettings(sandbox=True))
    service = EnvironmentService([folder / "plugins"], folder / "other", interpreters=interpreters)
    await service.start()
    print(*(pid for _, pid in service.processes()), flush=True)
    await asyncio.Future()

asyncio.run(main())
"""


async def test_none_outlives_a_killed_engine(world: World) -> None:
    command = (sys.executable, "-P", "-c", ENGINE, str(world.folder.parent))
    engine = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert engine.stdout is not None
    watched = [os.pidfd_open(below) for below in family(int(await engine.stdout.readline()))]
    engine.kill()
    await engine.wait()
    for descriptor in watched:
        await readable(descriptor)
        os.close(descriptor)


def family(pid: int) -> list[int]:
    """A process and all below it."""
    below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(found for one in below for found in family(int(one)))]


async def readable(descriptor: int) -> None:
    """Wait until the process has ended."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(descriptor, ended.set)
    await ended.wait()
    asyncio.get_running_loop().remove_reader(descriptor)
