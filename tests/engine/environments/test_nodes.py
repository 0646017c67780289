"""Processes on other nodes: they play and score as here, and a lost node costs only its episodes."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import textwrap
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from marlaas.engine.environments import pool
from marlaas.engine.environments.files.source import Snapshots, read_source
from marlaas.engine.environments.nodes import host as rows
from marlaas.engine.environments.nodes.host import MAIN, PIECE, WINDOW, Began, Parcel, RowsThere, Sent, Streams
from marlaas.engine.environments.nodes.remote import Caller, RemoteNode, RemoteProcess
from marlaas.engine.environments.process.child import BrokenPlugin, Child, Owner
from marlaas.engine.environments.process.launch import Folders, obstacle
from marlaas.engine.environments.protocol import EpisodeOutcome
from marlaas.engine.environments.served_version import Lease
from marlaas.engine.home.settings import EnvironmentSettings
from marlaas.plugins.data import Source

from .conftest import Nodes, Slow, World, a_spec, echoing
from .test_processes import begun
from .test_programs import PLUGIN, Speaker

WHERE = """
# /// script
# [tool.marlaas]
# workers = [1, 4]
# episodes = 2
# ///
import os
from pathlib import Path
from marlaas.plugins import env

print("imported in", Path.cwd())

@env
async def where(ep, fail: bool = False):
    await ep.ask("x")
    if fail:
        raise ValueError("as it was told to")
    return float("hosted" in Path(__file__).parts)

@env(name="writes")
async def writes(ep):
    reply = await ep.ask("y" * 3_000_000)
    return len(reply.text)
"""


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting episodes start processes soon."""
    monkeypatch.setattr(pool, "LOOK", 0.05)


async def serving(world: World, nodes: Nodes) -> Lease:
    """A lease of the plugin, in a service with a node that has many more cores than this machine."""
    world.save("places.py", WHERE)
    world.service.use_nodes([await nodes.start("b", 64)])
    await world.service.start()
    return await world.service.bind("places/where")


async def spread(world: World, lease: Lease, count: int = 6) -> tuple[Slow, list[asyncio.Task[EpisodeOutcome]]]:
    """Episodes in progress in several processes, some of them on a node."""
    model = Slow()
    episodes = begun(world, lease, model, count)
    await model.until(count)
    assert any(child.node for child in lease.serving.children)
    return model, episodes


@pytest.mark.processes
@pytest.mark.timeout(180)
@pytest.mark.usefixtures("eager")
async def test_a_node_plays_as_this_machine_does(world: World, nodes: Nodes) -> None:
    """With lines of errors, logs, and messages of megabytes; only processes of this machine count as its own."""
    lease = await serving(world, nodes)
    model, episodes = await spread(world, lease)
    assert lease.serving.crew.playing == len(lease.serving.children) > len(lease.serving.pids)
    assert {pid for _, pid in world.service.processes()} == set(lease.serving.pids)
    failing = [
        asyncio.create_task(world.service.play(lease, a_spec(index=n, fail=True), echoing)) for n in range(20, 26)
    ]
    model.go.set()
    outcomes = await asyncio.gather(*episodes)
    assert {outcome.status for outcome in outcomes} == {"ok"}, outcomes
    rewards = [outcome.rewards["agent"] for outcome in outcomes]
    assert 0 < sum(rewards) < len(rewards), "both played"
    for outcome in await asyncio.gather(*failing):
        assert outcome.failure is not None
        assert (outcome.failure.file, outcome.failure.line) == ("places.py", 17)
    log = world.scratch / "logs" / "places.log"
    while f"imported in {nodes.folder / 'b'}" not in log.read_text():
        await asyncio.sleep(0.01)
    with await world.service.bind("places/writes") as writes:
        long = await asyncio.gather(*(world.service.play(writes, a_spec(index=n), echoing) for n in range(6)))
    assert {outcome.rewards["agent"] for outcome in long} == {3_000_000.0}

    model, episodes = await spread(world, lease)  # a drained node ends what it plays, and gets nothing
    world.service.use_nodes([])
    model.go.set()
    assert {outcome.status for outcome in await asyncio.gather(*episodes)} == {"ok"}
    while any(child.node for child in lease.serving.children):
        await asyncio.gather(*(world.service.play(lease, a_spec(index=n), echoing) for n in range(2)))
        await asyncio.sleep(0.01)
    lease.release()


@pytest.mark.processes
@pytest.mark.timeout(180)
@pytest.mark.usefixtures("eager")
async def test_a_lost_node_blames_nobody_and_a_death_there_does(world: World, nodes: Nodes) -> None:
    lease = await serving(world, nodes)
    model, episodes = await spread(world, lease)
    os.kill(nodes.handles["b"].pid, signal.SIGKILL)
    await nodes.handles["b"].died.wait()
    model.go.set()
    outcomes = await asyncio.gather(*episodes)
    lost = [outcome for outcome in outcomes if outcome.status == "error"]
    assert lost and len(lost) < len(outcomes)
    for outcome in lost:
        assert outcome.died and outcome.overloaded
        assert outcome.failure is not None and outcome.failure.message == "its node b was lost"
    assert lease.serving.health.deaths == 0
    assert all(not child.node for child in lease.serving.children)
    assert not any(event.kind in ("died", "quarantined") for event in world.told)

    world.service.use_nodes([await nodes.start("c", 64)])
    model, episodes = await spread(world, lease)
    os.kill(next(child.pid for child in lease.serving.children if child.node), signal.SIGKILL)
    model.go.set()
    outcomes = await asyncio.gather(*episodes)
    (failure,) = {outcome.failure for outcome in outcomes if outcome.status == "error"}
    assert failure is not None and failure.message == "its process was ended by SIGKILL"
    assert lease.serving.health.deaths == 1
    lease.release()


ROWS = """
# /// script
# [tool.marlaas]
# workers = [1, 4]
# episodes = 2
# ///
from pathlib import Path
from marlaas.plugins import env

@env(data=lambda split: [{"a": number} for number in range(40)])
async def rows(ep, task):
    await ep.ask(str(task["a"]))
    return float(task["a"]) + 0.5 * ("hosted" in Path(__file__).parts)
"""


async def named_rows(world: World, nodes: Nodes, path: Path) -> Lease:
    """A lease over rows of a file, and a node that has many more cores than this machine."""
    world.save("rows.py", ROWS)
    path.write_text("".join(f'{{"a": {number}}}\n' for number in range(100, 140)))
    world.service.use_nodes([await nodes.start("b", 64)])
    await world.service.start()
    return await world.service.bind("rows", data=Source(path).record())


@pytest.mark.processes
@pytest.mark.timeout(180)
@pytest.mark.usefixtures("eager")
async def test_rows_that_a_task_names_go_to_a_node(world: World, nodes: Nodes, tmp_path: Path) -> None:
    lease = await named_rows(world, nodes, tmp_path / "mine.jsonl")
    model, episodes = await spread(world, lease)
    model.go.set()
    outcomes = await asyncio.gather(*episodes)
    assert [outcome.failure for outcome in outcomes if outcome.failure] == []
    rewards = [outcome.rewards["agent"] for outcome in outcomes]
    assert all(reward >= 100 for reward in rewards) and any(reward % 1 for reward in rewards), "some played there"
    (sent,) = (nodes.folder / "b" / "hosted" / "rows").iterdir()
    assert sent.read_text() == (tmp_path / "mine.jsonl").read_text()
    alone = await asyncio.gather(*(world.service.play(lease, a_spec(index=n), echoing) for n in range(6)))
    assert [int(outcome.rewards["agent"]) for outcome in alone] == [int(reward) for reward in rewards]
    lease.release()


@pytest.mark.processes
@pytest.mark.timeout(180)
@pytest.mark.usefixtures("eager")
async def test_rows_that_are_too_large_stay_here(
    world: World, nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marlaas.engine.environments.nodes.host.MOST", 100)
    lease = await named_rows(world, nodes, tmp_path / "mine.jsonl")
    model = Slow()
    episodes = begun(world, lease, model, 6)
    event = await world.until("elsewhere", "rows")
    assert event.failure is not None
    assert event.failure.message.startswith("its processes stay off b: its rows ")
    assert event.failure.message.endswith("mine.jsonl stay here: they are larger than 1e-07 GB")
    model.go.set()
    outcomes = await asyncio.gather(*episodes)
    assert {outcome.status for outcome in outcomes} == {"ok"}
    assert not any(outcome.rewards["agent"] % 1 for outcome in outcomes), "all played here"
    assert sum(told.kind == "elsewhere" for told in world.told) == 1
    lease.release()


@pytest.mark.processes
@pytest.mark.timeout(180)
@pytest.mark.usefixtures("eager")
async def test_what_does_not_work_there_stays_here(world: World, nodes: Nodes) -> None:
    """A plugin that reads a file that the node does not have; one event says so."""
    secret = world.scratch.parent / "only-here"
    secret.write_text("x")
    text = WHERE.replace('await ep.ask("x")', 'assert "nodes" not in str(Path.cwd()); await ep.ask("x")')
    world.save("places.py", text)
    world.service.use_nodes([await nodes.start("b", 64)])
    await world.service.start()
    lease = await world.service.bind("places/where")
    model = Slow()
    episodes = begun(world, lease, model, 6)
    event = await world.until("elsewhere", "places")
    assert event.failure is not None
    assert event.failure.message.startswith("its processes stay off b: places/where ended") or "b:" in str(event)
    await model.until(6)
    model.go.set()
    assert {outcome.status for outcome in await asyncio.gather(*episodes)} == {"ok"}
    assert sum(told.kind == "elsewhere" for told in world.told) == 1
    lease.release()


WAITS = """
import os
import time
from pathlib import Path
from marlaas.plugins import Score, env

@env
async def waits(ep, marker: str = ""):
    ep.task = marker
    await ep.ask("x")

@waits.score
def score(task, transcript):
    while not os.path.exists(task):
        time.sleep(0.01)
    return Score(1.0, there=float("nodes" in Path.cwd().parts))
"""

CORES = 2
"""Of each node."""

Plays = list[asyncio.Task[EpisodeOutcome]]


async def waiting(world: World, nodes: Nodes, names: str, marker: Path, count: int) -> tuple[Lease, Plays]:
    """Episodes that wait to be scored until the marker exists; this machine counts as one core."""
    world.save("waits.py", WAITS)
    world.service._budget.cores = world.service._reach._cores = 1
    world.service.use_nodes([await nodes.start(name, CORES) for name in names])
    await world.service.start()
    lease = await world.service.bind("waits")
    return lease, plays_of(world, lease, marker, count)


def plays_of(world: World, lease: Lease, marker: Path, count: int) -> Plays:
    specs = (a_spec(index=n, marker=str(marker)) for n in range(count))
    return [asyncio.ensure_future(world.service.play(lease, spec, echoing)) for spec in specs]


async def until_workers(lease: Lease, count: int) -> None:
    while lease.serving.crew.scoring < count:
        await asyncio.sleep(0.02)


@pytest.mark.processes
@pytest.mark.timeout(180)
async def test_workers_grow_over_all_nodes_and_survive_a_lost_one(world: World, nodes: Nodes, tmp_path: Path) -> None:
    """One core here and four there: six work at once, and soon more, since they only wait."""
    lease, plays = await waiting(world, nodes, "bc", tmp_path / "go", 12)
    await until_workers(lease, 2 + 2 * CORES)
    at = [child.node for child in lease.serving._scoring.children]
    assert len(at) >= 2 + 2 * CORES
    assert {"", "b", "c"} == set(at)
    os.kill(nodes.handles["b"].pid, signal.SIGKILL)
    await nodes.handles["b"].died.wait()
    (tmp_path / "go").touch()
    outcomes = await asyncio.gather(*plays)
    assert {outcome.status for outcome in outcomes} == {"ok"}, "what was scored at b is scored again"
    assert 0 < sum(outcome.parts["there"] for outcome in outcomes) < len(outcomes)
    assert not any(event.kind in ("died", "quarantined") for event in world.told)
    lease.release()


def sent(parcel: Parcel, there: RowsThere) -> list[str]:
    """Send what is missing; returns the digests of that."""
    missing = there.missing(digest for _, digest in parcel.files)
    for digest in missing:
        for piece in parcel.pieces(digest):
            there.take(digest, piece)
    return missing


def test_files_arrive_whole_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "ROWS_PIECE", 7)
    texts = {"train": "a much longer file", "eval": "short", "test": ""}
    for split, text in texts.items():
        (tmp_path / f"{split}.jsonl").write_text(text)
    there = RowsThere(tmp_path / "there")
    parcel = Parcel.of(Source(tmp_path / "{split}.jsonl").record())
    assert parcel.path == "{split}.jsonl" and len(sent(parcel, there)) == 3
    there.lay_out(parcel.files, tmp_path / "lent")
    assert {path.stem: path.read_text() for path in (tmp_path / "lent").iterdir()} == texts
    there.lay_out(parcel.files, tmp_path / "lent")
    (tmp_path / "train.jsonl").write_text("changed")
    changed = Parcel.of(Source(tmp_path / "{split}.jsonl").record())
    assert changed.key != parcel.key and len(sent(changed, there)) == 1
    monkeypatch.setattr(rows, "KEPT", 1)  # of those in use, the processes' folders have links
    there.lay_out(changed.files, tmp_path / "newer")
    assert len(list((tmp_path / "there").iterdir())) == 1
    assert (tmp_path / "newer" / "train.jsonl").read_text() == "changed"


def test_other_bytes_than_were_sent_are_refused(tmp_path: Path) -> None:
    there = RowsThere(tmp_path)
    there.take("0" * 64, b"something else")
    with pytest.raises(OSError, match="others than were sent"):
        there.lay_out([("train.jsonl", "0" * 64)], tmp_path / "lent")
    assert not list(tmp_path.iterdir())


ALWAYS = EnvironmentSettings(allow="always", offline=True)


class Bench:
    """A plugin that is brought to a node."""

    def __init__(self, folder: Path, node: RemoteNode) -> None:
        self.folder, self.node = folder, node
        self.owner = cast(Owner, SimpleNamespace(died=lambda failure: None, idled=lambda: None))
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


@pytest.mark.processes
@pytest.mark.timeout(180)
async def test_programs_there_reach_the_gateway_here(bench: Bench) -> None:
    model = Speaker()
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


@pytest.mark.processes
@pytest.mark.timeout(180)
async def test_what_a_process_does_there_is_known_here(bench: Bench) -> None:
    """A line that cannot be imported, an import without end, and what is computed."""
    with pytest.raises(BrokenPlugin) as caught:
        async with bench.child("from marlaas.plugins import env\nraise ValueError('no')\n"):
            pass
    failure = caught.value.failure
    assert (failure.file, failure.line) == ("p.py", 2) and "no" in failure.message
    path = bench.save("while True:\n    pass\n")
    await bench.node.prepare(path, False, ALWAYS)
    with pytest.raises(BrokenPlugin, match="takes too long"):
        await Child.start(path, bench.folders, bench.owner, 1.0, bench.node)
    text = """
        import time
        from marlaas.plugins import env
        begun = time.process_time()
        while time.process_time() - begun < 0.2:
            pass
        @env
        async def waits(ep):
            await ep.ask("x")
    """
    async with bench.child(text) as child:
        while child._process.computed() < 0.2:
            await asyncio.sleep(0.05)


@pytest.mark.processes
@pytest.mark.timeout(180)
async def test_a_version_is_brought_once_with_its_libraries(bench: Bench) -> None:
    path = bench.save("from marlaas.plugins import env\n")
    first, second = await asyncio.gather(*(bench.node.prepare(path, False, ALWAYS) for _ in range(2)))
    assert first == second == "" and bench.node.ready(path.parent.name)
    (there,) = (bench.folder.parent / "nodes" / "b").rglob("p.py")
    assert there.read_bytes() == path.read_bytes() and there.parent.name == path.parent.name
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


@pytest.mark.processes
@pytest.mark.timeout(180)
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


@pytest.mark.processes
@pytest.mark.timeout(180)
async def test_where_nothing_can_be_confined_it_stays_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine has bwrap, the node has none."""
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


@pytest.mark.processes
@pytest.mark.timeout(180)
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


@pytest.mark.processes
@pytest.mark.timeout(180)
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
