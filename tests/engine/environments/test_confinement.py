"""What a confined process cannot reach, with the real bwrap if this machine has it; and how processes are launched."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from marlaas.engine.environments.dependencies import Interpreters
from marlaas.engine.environments.process import child
from marlaas.engine.environments.process.launch import Confinement, Folders, Runtime, launch, obstacle, readable_for
from marlaas.engine.environments.protocol import Answering, Listener
from marlaas.engine.environments.service import EnvironmentService
from marlaas.engine.home.settings import EnvironmentSettings
from marlaas.plugins import Endpoint

from .conftest import World, echoing, ended


def binds(words: list[str], kind: str) -> list[str]:
    return [words[place + 1] for place, word in enumerate(words) if word == kind]


def test_only_scratch_is_writable_and_homes_are_empty(tmp_path: Path) -> None:
    home, snapshot, scratch, python, lent = (
        tmp_path / name for name in ("home", "home/s/1", "home/work", "home/venvs/k", "home/z/rows")
    )
    for folder in (home, snapshot, scratch, python, lent):
        folder.mkdir(parents=True, exist_ok=True)
    words = Confinement((home,), (python, Path("/usr"), tmp_path / "gone")).command(snapshot, scratch, lent)
    assert {"--die-with-parent", "--unshare-all"} <= set(words) and words[-1] == "--"
    assert binds(words, "--bind") == [str(scratch)] == binds(words, "--chdir")
    assert sorted(binds(words, "--ro-bind")) == ["/", *map(str, (snapshot, python, lent))], "hidden and needed"
    hidden = binds(words, "--tmpfs")
    assert str(Path("/tmp").resolve()) in hidden and str(Path.home().resolve()) in hidden
    assert any(home.is_relative_to(folder) for folder in hidden)
    assert all(words.index(folder) < words.index(str(snapshot)) for folder in hidden), "bound after it was hidden"


def test_a_home_that_a_python_reads_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "venv" / "lib"
    (home / "plugin").mkdir(parents=True)
    sound = Confinement((home,), (tmp_path / "venv" / "bin", home / "plugin"))
    assert sound.contradiction() == ""
    assert Confinement((home,), (home,)).contradiction() == (
        f"Python's own files lie in {home}, which is to be out of sight: choose another home"
    )


def test_what_a_python_reads(tmp_path: Path) -> None:
    real, venv, loose = tmp_path / "pythons" / "3.12", tmp_path / "venv", tmp_path / "me" / "bin" / "python"
    for folder in (real / "bin", venv / "bin", loose.parent):
        folder.mkdir(parents=True)
    (real / "bin" / "python3.12").touch()
    (venv / "bin" / "python").symlink_to(real / "bin" / "python3.12")
    (venv / "pyvenv.cfg").touch()
    loose.symlink_to(real / "bin" / "python3.12")
    own = (venv / "bin", venv / "lib", venv / "lib64", venv / "pyvenv.cfg")
    base = (real / "bin", real / "lib", real / "lib64")
    assert readable_for(venv / "bin" / "python") == (venv / "bin" / "python", *own, *base)
    assert readable_for(loose) == (loose, *base), "what lies beside a link is not of Python"


@dataclass
class Person:
    """Somebody whose Python lies in the folder with all their files."""

    prefix: Path
    home: Path

    @property
    def python(self) -> Path:
        return self.prefix / "bin" / "python"

    def sees(self, confinement: Confinement) -> set[str]:
        """The files below the person's folder that a confined process finds."""
        me, scratch = Path.home(), self.home / "work"
        search = (
            "import os, sys\nfor at, _, files in os.walk(sys.argv[1]): print(*(os.path.join(at, one) for one in files))"
        )
        command = [*confinement.command(self.home / "snapshot", scratch), str(self.python), "-I", "-c", search, str(me)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return {str(Path(found).relative_to(me)) for found in done.stdout.split()}


@pytest.fixture
def person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Person:
    """With ``~/.local`` as a virtual environment, reached by a link, and the state folder in it."""
    if reason := obstacle():
        pytest.skip(reason)
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    made = Person(tmp_path / "me" / ".local", tmp_path / "me" / ".local" / "state" / "marlaas")
    secrets = (Path.home() / ".ssh" / "id", made.home / "marlaas.db", made.home / "plugins" / "other.py")
    library = made.prefix / "lib" / "library.py"
    for file in (*secrets, library, made.home / "snapshot" / "x.py", made.home / "work" / "mine", made.python):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    base = Path(sys.executable).resolve()
    (tmp_path / "me" / "pythons").symlink_to(base.parent)
    made.python.unlink()
    made.python.symlink_to(f"../../pythons/{base.name}")
    (made.prefix / "pyvenv.cfg").write_text(f"home = {tmp_path / 'me' / 'pythons'}\n")
    return made


NEEDED = {
    *(f".local/{name}" for name in ("bin/python", "pyvenv.cfg", "lib/library.py")),
    *(f".local/state/marlaas/{name}" for name in ("snapshot/x.py", "work/mine")),
}


@pytest.mark.processes
def test_a_home_near_its_python_stays_hidden(person: Person) -> None:
    assert person.sees(Confinement((person.home,), readable_for(person.python))) == NEEDED
    person.home = person.home.rename(person.prefix / "lib" / "marlaas")
    seen = person.sees(Confinement((person.home,), readable_for(person.python)))
    assert seen == {name.replace("state/", "lib/") for name in NEEDED}, "also within it"


@pytest.mark.processes
def test_why_nothing_can_be_confined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert obstacle() == "bwrap (bubblewrap) is not installed"
    bwrap = tmp_path / "bwrap"
    bwrap.write_text("#!/bin/sh\necho 'bwrap: No permissions to create a new\nnamespace' >&2\nexit 1\n")
    bwrap.chmod(0o755)
    assert obstacle() == "bwrap: No permissions to create a new namespace"
    bwrap.write_text("#!/bin/sh\nexit 0\n")
    assert obstacle() == ""


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
    await made.serve(spy=SPY)
    yield made
    await made.service.stop()


@pytest.mark.processes
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


@pytest.mark.processes
async def test_a_blocked_process_is_interrupted_and_all_ends(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "BEAT", 0.4)  # a host takes a ping a second for granted, so it needs a little
    outcome = await world.play("spy/spins")
    assert outcome.status == "timeout" and outcome.failure is not None
    spin = 1 + SPY.splitlines().index('    while "no await in here":')
    assert outcome.failure.file == "spy.py" and outcome.failure.line in (spin, spin + 1)
    ((_, pid),) = world.service.processes()
    watched = [asyncio.create_task(ended(below)) for below in family(pid)]
    assert len(watched) == 4, "bwrap twice, the host, and what it started"
    await asyncio.sleep(0)
    await world.service.stop()
    await asyncio.gather(*watched)


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


@pytest.mark.processes
async def test_a_program_without_a_network_finds_its_model(world: World) -> None:
    """Nothing else, not even at the model's port."""
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

    await world.edit("asks", PROGRAM)
    outcome = await world.play("asks/asks", Answering(echoing, endpoint=opens), port=port)
    server.close()
    assert outcome.status == "ok", outcome.failure
    metrics = dict(outcome.metrics)
    assert metrics["said"] == "the model\n" and str(port) not in str(metrics["address"])
    assert len(heard) == 1 and heard[0].startswith(b"GET /v1/who HTTP/1.1")


ENGINE = """
import asyncio, sys
from pathlib import Path
from marlaas.engine.home.settings import EnvironmentSettings
from marlaas.engine.environments.dependencies import Interpreters
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


@pytest.mark.processes
async def test_none_outlives_a_killed_engine(world: World) -> None:
    command = (sys.executable, "-P", "-c", ENGINE, str(world.folder.parent))
    engine = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert engine.stdout is not None
    watched = [asyncio.create_task(ended(below)) for below in family(int(await engine.stdout.readline()))]
    await asyncio.sleep(0)
    engine.kill()
    await engine.wait()
    await asyncio.gather(*watched)


def family(pid: int) -> list[int]:
    """A process and all below it."""
    below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(found for one in below for found in family(int(one)))]


SNAPSHOT = Path("/h/scratch/snapshots/1/x.py")


async def test_what_cannot_be_started_leaves_no_socket_open(tmp_path: Path) -> None:
    folders = Folders.of(tmp_path, "x")
    folders.log.mkdir(parents=True)
    gc.collect()  # what other tests left open is not closed in between
    before = os.listdir("/proc/self/fd")
    with pytest.raises(IsADirectoryError):
        await launch(SNAPSHOT, folders)
    assert os.listdir("/proc/self/fd") == before
    missing = dataclasses.replace(Folders.of(tmp_path, "y"), runtime=Runtime(tmp_path / "no python"))
    with pytest.raises(FileNotFoundError):
        await launch(SNAPSHOT, missing)
    assert os.listdir("/proc/self/fd") == before


async def test_a_cancelled_wait_leaves_no_socket_open(tmp_path: Path) -> None:
    folders = Folders.of(tmp_path, "x")
    folders = dataclasses.replace(folders, runtime=Runtime(Path(sys.executable)))
    launched = await launch(tmp_path / "x.py", folders)
    launched.connection.close()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await launched.wait()
    assert launched.pulse.connection.fileno() == -1
    launched.kill()
    await launched.wait()
