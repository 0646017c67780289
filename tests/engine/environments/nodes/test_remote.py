"""One process on a node, without a pool: what it does is seen here as if it were here."""

from __future__ import annotations

import asyncio
import shutil
import socket
import textwrap
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from marlaas.engine.environments.files.source import Snapshots, read_source
from marlaas.engine.environments.nodes.host import MAIN, PIECE, WINDOW, Began, Sent, Streams
from marlaas.engine.environments.nodes.remote import Caller, Reach, RemoteNode, RemoteProcess
from marlaas.engine.environments.process.child import BrokenPlugin, Child
from marlaas.engine.environments.process.launch import Folders, obstacle
from marlaas.engine.environments.protocol import EpisodeOutcome
from marlaas.engine.home.settings import EnvironmentSettings
from marlaas.engine.trajectories import Failure
from tests.engine.environments.conftest import a_spec, echoing
from tests.engine.environments.nodes.conftest import Nodes
from tests.engine.environments.test_endpoint import PLUGIN, Model

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

ALWAYS = EnvironmentSettings(allow="always", offline=True)


class Owner:
    """Hears of a death."""

    def __init__(self) -> None:
        self.failure: Failure | None = None

    def died(self, failure: Failure) -> None:
        self.failure = failure

    def idled(self) -> None: ...


class Bench:
    """A plugin that is brought to a node."""

    def __init__(self, folder: Path, node: RemoteNode) -> None:
        self.folder, self.node, self.owner = folder, node, Owner()
        self.folders = Folders(folder / "work" / "p", folder / "p.log")

    def save(self, text: str) -> Path:
        (self.folder / "p.py").write_text(textwrap.dedent(text))
        return Snapshots(self.folder / "snapshots").write(read_source(self.folder / "p.py"))

    @asynccontextmanager
    async def child(self, text: str) -> AsyncIterator[Child]:
        path = self.save(text)
        assert await self.node.prepare(path, False, ALWAYS) == ""
        child = await Child.start(path, self.folders, self.owner, 60.0, self.node)
        try:
            yield child
        finally:
            child.kill("the test is over")
            await child.wait()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    nodes = Nodes(tmp_path / "nodes")
    (tmp_path / "here").mkdir()
    yield Bench(tmp_path / "here", await nodes.start("b"))
    await nodes.stop()


async def test_programs_there_reach_the_gateway_here(bench: Bench) -> None:
    model = Model()
    async with bench.child(PLUGIN) as child:
        first = await child.play("programmed", a_spec(), model.answer)
        plays = (child.play("programmed", a_spec(index=n), model.answer) for n in (1, 2))
        outcomes = [first, *await asyncio.gather(*plays)]
        for outcome in outcomes:
            assert isinstance(outcome, EpisodeOutcome)
            assert (outcome.status, outcome.rewards) == ("ok", {"agent": 1.5, "helper": 1.0}), outcome
    assert len(model.lines) == 3
    for writer in model.lines:
        writer.close()
    model.server.close()
    await model.server.wait_closed()


async def test_a_plugin_that_cannot_be_imported_says_where(bench: Bench) -> None:
    with pytest.raises(BrokenPlugin) as caught:
        async with bench.child("from marlaas.plugins import env\nraise ValueError('no')\n"):
            pass
    failure = caught.value.failure
    assert (failure.file, failure.line) == ("p.py", 2) and "no" in failure.message


async def test_an_import_that_takes_too_long_is_interrupted(bench: Bench) -> None:
    path = bench.save("while True:\n    pass\n")
    await bench.node.prepare(path, False, ALWAYS)
    with pytest.raises(BrokenPlugin, match="takes too long"):
        await Child.start(path, bench.folders, bench.owner, 1.0, bench.node)


async def test_its_use_of_the_processor_is_known_here(bench: Bench) -> None:
    text = """
        import time
        from marlaas.plugins import env
        begun = time.process_time()
        while time.process_time() - begun < 0.5:
            pass
        @env
        async def waits(ep):
            await ep.ask("x")
    """
    async with bench.child(text) as child:
        while child._process.computed() < 0.5:
            await asyncio.sleep(0.05)


async def test_a_version_is_brought_once(bench: Bench) -> None:
    path = bench.save("from marlaas.plugins import env\n")
    first, second = await asyncio.gather(*(bench.node.prepare(path, False, ALWAYS) for _ in range(2)))
    assert first == second == "" and bench.node.ready(path.parent.name)
    (there,) = (bench.folder.parent / "nodes" / "b").rglob("p.py")
    assert there.read_bytes() == path.read_bytes() and there.parent.name == path.parent.name


async def test_libraries_that_cannot_be_had_there_keep_it_here(bench: Bench) -> None:
    text = """
        # /// script
        # dependencies = ["there-is-no-such-library-of-marlaas"]
        # ///
        from marlaas.plugins import env
    """
    path = bench.save(text)
    refused = await bench.node.prepare(path, False, ALWAYS)
    assert refused.startswith("needs there-is-no-such-library-of-marlaas, which cannot be installed: ")
    assert not bench.node.ready(path.parent.name)
    never = replace(ALWAYS, allow="never")
    other = bench.save(text.replace("there-is-no-such", "there-is-no-other"))
    assert 'allow = "never"' in await bench.node.prepare(other, False, never)


@pytest.mark.skipif(bool(obstacle()), reason=f"no process can be confined here: {obstacle()}")
async def test_what_is_confined_here_is_confined_there(bench: Bench) -> None:
    path = bench.save(
        """
        # /// script
        # [tool.marlaas]
        # network = false
        # ///
        import socket
        from marlaas.plugins import env

        @env
        async def sealed(ep):
            await ep.ask("x")
            try:
                socket.create_connection(("192.0.2.1", 9), timeout=1.0)
            except OSError as error:
                return float("unreachable" in str(error).lower())
        """
    )
    assert await bench.node.prepare(path, True, ALWAYS) == ""
    child = await Child.start(path, bench.folders, bench.owner, 60.0, bench.node)
    outcome = await child.play("sealed", a_spec(), echoing)
    assert isinstance(outcome, EpisodeOutcome) and outcome.rewards == {"agent": 1.0}, outcome
    child.kill("the test is over")
    await child.wait()


async def test_where_nothing_can_be_confined_it_stays_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node has no bwrap, which this machine has."""
    only = tmp_path / "bin"
    only.mkdir()
    (only / "uv").symlink_to(shutil.which("true") or "/bin/true")
    monkeypatch.setenv("PATH", str(only))
    nodes = Nodes(tmp_path / "nodes")
    (tmp_path / "here").mkdir()
    bench = Bench(tmp_path / "here", await nodes.start("b"))
    path = bench.save("# /// script\n# [tool.marlaas]\n# network = false\n# ///\nfrom marlaas.plugins import env\n")
    refused = await bench.node.prepare(path, True, ALWAYS)
    assert "bwrap (bubblewrap) is not installed" in refused
    await nodes.stop()


class FakeNode:
    """A node with a process whose connection is a socket of the test."""

    def __init__(self) -> None:
        self.died = asyncio.Event()
        self.passed = 0
        self.received = 0
        """Bytes that the node passed on, and that the engine took."""
        self.process, theirs = socket.socketpair()
        self._theirs = theirs

    def call(self, method: str, *args: Any, stream_to: Callable[[Any], None] | None = None) -> asyncio.Future[Any]:
        assert method == "run" and stream_to is not None

        def send(stream: int, data: bytes) -> None:
            self.passed += len(data)
            stream_to(Sent(stream, data))

        self.streams = Streams(send, room=WINDOW)
        self.streams.open(MAIN, asyncio.open_connection(sock=self._theirs))
        stream_to(Began(1))
        return asyncio.get_running_loop().create_future()

    def post(self, method: str, *args: Any) -> None:
        if method == "taken":
            self.received += args[1]
            self.streams.acknowledge(args[1])


async def test_a_process_that_floods_its_socket_waits_as_it_would_here(tmp_path: Path) -> None:
    caller, flood = FakeNode(), bytes(8 * WINDOW)
    node = RemoteNode("b", "b", 4, caller)
    node.refuse("v", "")
    process = cast(RemoteProcess, await node.launch(tmp_path / "v" / "p.py", Folders(tmp_path, tmp_path / "log")))
    _, flooding = await asyncio.open_connection(sock=caller.process)
    flooding.write(flood)  # nobody takes anything
    while caller.passed - caller.received < WINDOW:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert caller.passed - caller.received < WINDOW + PIECE and caller.passed < len(flood) / 2
    reader, writer = await asyncio.open_connection(sock=process.connection)
    assert await reader.readexactly(len(flood)) == flood
    for end in (writer, flooding, process.pulse):
        end.close()
    await asyncio.gather(caller.streams.close(), process._streams.close())


async def test_files_that_cannot_be_read_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / "v" / "p.py"
    calls: list[str] = []

    async def ready(method: str, *_: Any) -> str:
        calls.append(method)
        return ""

    node = RemoteNode("b", "b", 4, cast(Caller, SimpleNamespace(died=asyncio.Event(), call=ready)))
    assert (await node.prepare(path, False, ALWAYS)).startswith("its files cannot be read: ")
    assert not node.ready("v") and not node.refused("v") and not node.preparing("v")
    path.parent.mkdir()
    path.write_text("from marlaas.plugins import env\n")
    assert await node.prepare(path, False, ALWAYS) == "" and node.ready("v")
    assert await node.prepare(path, False, ALWAYS) == "" and calls == ["prepare"]


class Busy:
    """A process that works on a node."""

    dead, idle = None, False

    def __init__(self, node: str) -> None:
        self.node = node


def test_the_next_process_goes_where_there_is_the_most_room() -> None:
    reach = Reach(cores=2)
    nodes = [RemoteNode(name, name, cores, cast(Caller, Busy(name)), 0.01) for name, cores in (("b", 2), ("c", 64))]
    for node in nodes:
        node._refused["v"] = ""
        node.caller.died = asyncio.Event()

    def chosen(**busy: int) -> str:
        kept = [Busy("" if name == "here" else name) for name, count in busy.items() for _ in range(count)]
        for child in kept:
            reach.count(cast(Child, child))
        with reach.place(Path("v/p.py")) as launcher:
            return launcher.node

    assert chosen() == "", "there is no other"
    reach.use(nodes[:1])
    assert chosen() == "", "of equal ones the nearest"
    assert chosen(here=1) == "b"
    reach.use(nodes)
    assert chosen(c=2) == "c" and chosen(b=1, c=40) == ""
