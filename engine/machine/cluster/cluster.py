"""Workers on other nodes: the host there, and the engine's cluster of Ray, joined, watched and left."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import os
import shutil
import socket
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import psutil

from ...adapters.statefile import put_state
from ...devices.machine import UsableNode
from ...devices.usable import NOTHING, VARIABLE, Ours
from ...errors import AdapterDamaged, AdapterError, BaseModelError, ClusterUnreachable, MarlaasError, WorkerDied
from ...home.paths import Home, find_home
from ...home.settings import ClusterSettings, load_settings
from ...models.find import BaseModel, load_base
from ...racing import until_first
from ...samplers.protocol import Sampler
from ...trainer.protocol import GroupStats, Job, PolicyConfig, Probe, Refused, StepResult, Trainer, TrainGroup
from ..workers.handle import NO_VARIABLES, Launcher, LocalLauncher, Template, WorkerHandle, kill, last_line, run_host
from .joining import AUTO, check_listens, parse_address
from .node import Node, NodeFacts, look_here, own_versions, reason_in, trouble_with, unreached, usable_nodes

# A child's events are a stream of Ray's, which keeps their order. Ray may reorder calls, so orders go in one call after
# the other.

PIECE = 90_000
"""Bytes of a stream in one event: Ray puts values above 100 kB into its object store."""
SILENCE = 5.0


@dataclass(frozen=True)
class Begin:
    """Start a child with program, cores and variables."""

    name: str
    cores: tuple[int, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    nice: int = 0


Order = bytes | None
"""Bytes; empty closes the stream, and the child ends; None ends it at once."""


class Ended(NamedTuple):
    """The end of a child; nothing follows."""

    status: int | None
    """Negative for a signal; None: unknown."""
    reason: str = ""


class Event(NamedTuple):
    """A child's process id, bytes, printed output, or end."""

    kind: Literal["born", "data", "printed", "ended"]
    value: Any


class RemoteChild:
    """Its log is on the engine's machine.

    Ends once: by its exit, the loss of its host or bridge, or an unanswered order.
    """

    def __init__(self, bridge: WorkerHandle, node: str, begin: Begin, log_path: Path) -> None:
        log_path.parent.mkdir(parents=True, exist_ok=True)
        self.node = node
        self.pid = 0
        self.returncode: int | None = None
        self.reader = asyncio.StreamReader()
        self._bridge = bridge
        self._number = next(numbers)
        self._log_path = log_path
        self._log_start = log_path.stat().st_size if log_path.exists() else 0
        self._reason = ""
        self._ended = asyncio.Event()
        self._running = bridge.call("start", node, self._number, begin, stream_to=self._receive)
        self._running.add_done_callback(self._on_end)

    def write(self, data: bytes) -> None:
        self._send(data)

    def close(self) -> None:
        self._send(b"")

    def kill(self) -> None:
        self._send(None)
        asyncio.get_running_loop().call_later(SILENCE, self._settle, Ended(None, "its node answers nothing"))

    async def wait(self) -> None:
        await self._ended.wait()

    def last_words(self) -> str:
        return self._reason or last_line(self._log_path, self._log_start)

    def _send(self, order: bytes | None) -> None:
        if not self._ended.is_set():
            self._bridge.post("send", self._number, order, haste=True)

    def _receive(self, event: Event) -> None:
        match event.kind:
            case "data" if not self._ended.is_set():
                self.reader.feed_data(event.value)
            case "born":
                self.pid = event.value
            case "printed":
                with contextlib.suppress(OSError), open(self._log_path, "ab") as log:
                    log.write(event.value)

    def _on_end(self, running: asyncio.Future[Ended]) -> None:
        if running.cancelled():
            return self._settle(Ended(None, "the way to it has ended"))
        if (error := running.exception()) is not None:
            return self._settle(Ended(None, error.message if isinstance(error, MarlaasError) else str(error)))
        self._settle(running.result())

    def _settle(self, ended: Ended) -> None:
        if not self._ended.is_set():
            self.returncode, self._reason = ended
            self.reader.feed_eof()
            self._ended.set()


numbers = itertools.count(1)


class NodeLauncher:
    """``workers.Launcher`` for one node."""

    def __init__(
        self,
        bridge: WorkerHandle,
        node: str,
        named: Callable[[dict[str, Any]], dict[str, Any]] = lambda kwargs: kwargs,
    ) -> None:
        self._bridge = bridge
        self._node = node
        self._named = named

    async def start(
        self,
        name: str,
        factory: str,
        kwargs: dict[str, Any],
        cores: tuple[int, ...] = (),
        *,
        log_path: Path,
        environment: Mapping[str, str] = NO_VARIABLES,
        nice: int = 0,
        template: Template | None = None,
    ) -> WorkerHandle:
        """Raises ``BaseModelError``, too, without the base."""
        there = await self._bridge.call("resolve", self._node, self._named(kwargs))
        child = RemoteChild(self._bridge, self._node, Begin(name, cores, dict(environment), nice), log_path)
        return await WorkerHandle.begin(child, name, factory, there, log_path)


@dataclass(frozen=True)
class Folder:
    """The base model by fingerprint, or a folder of the node's home."""

    purpose: Literal["model", "base", "scratch"]
    path: str = ""
    """The engine's path of the model."""
    fingerprint: str = ""
    file: str = ""


def named(kwargs: Mapping[str, Any], base: BaseModel, home: Home) -> dict[str, Any]:
    """A worker's arguments with folders replaced by purposes."""
    folders = {
        str(base.path): Folder("model", str(base.path), base.fingerprint),
        str(home.base): Folder("base"),
        str(home.scratch): Folder("scratch"),
    }
    if base.gguf:
        folders[str(base.gguf)] = Folder("model", str(base.path), base.fingerprint, base.gguf.name)
    return _changed(kwargs, lambda value: folders.get(value, value) if isinstance(value, str) else value)


def resolve(kwargs: Mapping[str, Any], home: Home) -> dict[str, Any]:
    """The arguments with this node's folders; missing ones are made. Raises ``BaseModelError``."""

    def here(value: Any) -> Any:
        if not isinstance(value, Folder):
            return value
        if value.purpose == "model":
            return str(find_base(value, home) / value.file)
        folder = home.base if value.purpose == "base" else home.scratch
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return str(folder)

    return _changed(kwargs, here)


def _changed(kwargs: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    return {key: _changed(value, change) if isinstance(value, dict) else change(value) for key, value in kwargs.items()}


def find_base(model: Folder, home: Home) -> Path:
    """The base's folder: by the node's settings, or the engine's path.

    Raises ``BaseModelError`` if neither has the fingerprint.
    """
    names = [model.path]
    with contextlib.suppress(MarlaasError):
        names.insert(0, load_settings(home).base)
    for name in names:
        with contextlib.suppress(MarlaasError):
            base = load_base(name)
            if base.fingerprint == model.fingerprint:
                return base.path
    raise BaseModelError(
        f"The engine's base is not on this node: {Path(model.path).name}, fingerprint {model.fingerprint[:12]}.",
        "Copy the folder there, and name it as `base` in that machine's marlaas.toml.",
        where=model.path,
    )


KEPT = 64
"""Files; a missing one is pulled again."""
PREFIX = "states-"


class NodeFiles:
    """The files of one node host, removed when the next starts."""

    def __init__(self, scratch: Path) -> None:
        scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in scratch.glob(f"{PREFIX}*"):
            if not psutil.pid_exists(int(left.name.removeprefix(PREFIX))):
                shutil.rmtree(left, ignore_errors=True)
        self.folder = scratch / f"{PREFIX}{os.getpid()}"
        self.folder.mkdir(mode=0o700, exist_ok=True)

    def path(self, digest: str) -> Path:
        return self.folder / f"{digest}.safetensors"

    def here(self, digest: str) -> str:
        path = self.path(digest)
        with contextlib.suppress(OSError):
            os.utime(path)  # it is in use
            return str(path)
        return ""

    def keep(self, digest: str, data: bytes) -> str:
        """Returns the path. Raises ``AdapterDamaged`` for other bytes, and ``AdapterError`` if the disk refuses."""
        path = self.path(digest)
        if checksum_of(data) != digest:
            raise AdapterDamaged("is not what was sent: its checksum differs.", where=path.name)
        put_state(path, data, False)
        self._forget_old()
        return str(path)

    def adopt(self, path: Path) -> tuple[str, bytes]:
        """Returns the checksum and bytes. Raises ``AdapterError``."""
        try:
            data = path.read_bytes()
            digest = checksum_of(data)
            os.replace(path, self.path(digest))
            self._forget_old()
        except OSError as error:
            raise AdapterError(f"cannot be read on its node: {error.strerror}.", where=str(path)) from error
        return digest, data

    def _forget_old(self) -> None:
        with contextlib.suppress(FileNotFoundError):  # another thread forgets at the same time
            files = sorted(self.folder.glob("*.safetensors"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
            for path in files[KEPT:]:
                path.unlink(missing_ok=True)


def checksum_of(data: bytes) -> str:
    """SHA-256, hexadecimal."""
    return hashlib.sha256(data).hexdigest()


# One Ray actor per node relays a local engine's child programs. It decides nothing. Only ``bridge`` may import ray.

WAITING = 64
"""Events; then a child waits."""
SEEN = 30.0
PATIENCE = 1.0
"""Seconds: another process may hold a child's output open."""
OF_RAY = ("RAY_", "SPT_NOENV", "PYTHONBREAKPOINT", "OMP_NUM_THREADS")


class NodeHost:
    """An async actor; all methods belong to its event loop."""

    def __init__(self, home: Home | None = None) -> None:
        self._home = home or find_home()
        self._files = NodeFiles(self._home.scratch)
        self._keeping = asyncio.Lock()
        self._children: dict[int, Begin] = {}
        """Running ones, by process id."""
        self._orders: defaultdict[int, asyncio.Queue[Order]] = defaultdict(asyncio.Queue)
        self._facts: NodeFacts | None = None
        self._looked = 0.0

    async def echo(self, data: bytes = b"") -> float:
        """Seconds since 1970."""
        return time.time()

    async def describe(self, model: Folder, fresh: bool = True) -> NodeFacts:
        """Its children's memory and cards are free.

        Unless ``fresh``, up to ``SEEN`` seconds old. Unknown devices are measured if no child computes.
        """
        if fresh or self._facts is None or time.monotonic() - self._looked > SEEN:
            environments = [begin.environment for begin in self._children.values()]
            given = [environment.get(VARIABLE, "") for environment in environments]
            ours = Ours(frozenset(self._children), frozenset(card for cards in given for card in cards.split(",")))
            facts = await asyncio.to_thread(look_here, self._home, ours, measure=not self._children)
            try:
                await asyncio.to_thread(find_base, model, self._home)
            except BaseModelError as error:
                facts = replace(facts, without_base=str(error))
            self._facts = facts
            self._looked = time.monotonic()
        return self._facts

    async def resolve(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        return await asyncio.to_thread(resolve, kwargs, self._home)

    async def folder(self) -> str:
        return str(self._files.folder)

    async def here(self, digest: str) -> str:
        return self._files.here(digest)

    async def pull(self, digest: str, holder: list[Any]) -> str:
        """``holder`` has Ray's reference: this call need not wait for the bytes. Raises as ``NodeFiles.keep``."""
        data = await holder[0]
        async with self._keeping:  # several samplers may ask for one file
            return self._files.here(digest) or await asyncio.to_thread(self._files.keep, digest, data)

    async def adopt(self, path: str) -> tuple[str, bytes]:
        return await asyncio.to_thread(self._files.adopt, Path(path))

    async def take(self, orders: Sequence[tuple[int, Order]]) -> None:
        """Of running children, and of those that are about to run."""
        for child, order in orders:
            self._orders[child].put_nowait(order)

    async def run(self, child: int, begin: Begin) -> AsyncIterator[Event]:
        """A child's events, the last of which is its end."""
        events: asyncio.Queue[Event] = asyncio.Queue(WAITING)
        living = asyncio.ensure_future(self._live(begin, self._orders[child], events))
        try:
            while True:
                event = await events.get()
                yield event
                if event.kind == "ended":
                    return
        finally:
            living.cancel()
            del self._orders[child]

    async def _live(self, begin: Begin, orders: asyncio.Queue[Order], events: asyncio.Queue[Event]) -> None:
        try:
            ended = Ended(await self._relayed(begin, orders, events))
        except Exception as error:
            ended = Ended(None, f"it could not be started there: {error}")
        await events.put(Event("ended", ended))

    async def _relayed(self, begin: Begin, orders: asyncio.Queue[Order], events: asyncio.Queue[Event]) -> int:
        """Returns the child's exit status."""
        stream, theirs = socket.socketpair()
        output, into = socket.socketpair()
        with theirs, into, contextlib.ExitStack() as failing:
            failing.enter_context(stream)
            failing.enter_context(output)
            of_node = {name: value for name, value in os.environ.items() if not name.startswith(OF_RAY)}
            environment = of_node | dict(begin.environment)
            process = await run_host(begin.name, theirs, begin.cores, begin.nice, environment, into.fileno())
            failing.pop_all()
        self._children[process.pid] = begin
        tasks: list[asyncio.Future[None]] = []

        async def relay(kind: Literal["data", "printed"], reader: asyncio.StreamReader) -> None:
            with contextlib.suppress(ConnectionError):
                while data := await reader.read(PIECE):
                    await events.put(Event(kind, data))

        try:
            await events.put(Event("born", process.pid))
            reader, writer = await asyncio.open_connection(sock=stream, limit=PIECE)
            printed, unused = await asyncio.open_connection(sock=output)
            relaying = [asyncio.ensure_future(relay(*each)) for each in (("data", reader), ("printed", printed))]
            tasks = [*relaying, asyncio.ensure_future(_obey(process, writer, orders))]
            status = await process.wait()
            await asyncio.wait(relaying, timeout=PATIENCE)
            writer.close()
            unused.close()
            return status
        finally:
            for task in tasks:
                task.cancel()
            kill(process)
            del self._children[process.pid]


async def _obey(
    process: asyncio.subprocess.Process, writer: asyncio.StreamWriter, orders: asyncio.Queue[Order]
) -> None:
    while True:
        match await orders.get():
            case None:
                kill(process)
            case b"":
                writer.close()
            case data:
                writer.write(data)


T = TypeVar("T")


class StateFiles:
    """Carries files over one bridge."""

    def __init__(self, bridge: WorkerHandle, sync: bool) -> None:
        self._bridge = bridge
        self._sync = sync
        self._numbers = itertools.count()
        self._folders: dict[WorkerHandle, str] = {}

    async def bring(self, worker: WorkerHandle, path: str) -> str:
        """Returns the path there. Raises ``WorkerDied``, and ``AdapterError`` if a disk refuses."""
        return await alive(worker, self._bridge.call("bring", worker.node, path))

    async def collect(self, worker: WorkerHandle, there: str, path: str, new: bool) -> None:
        """``new``: version 0. Raises as ``bring``."""
        await alive(worker, self._bridge.call("collect", worker.node, there, path, self._sync, new))

    async def fresh(self, worker: WorkerHandle) -> str:
        if worker not in self._folders:
            self._folders[worker] = await alive(worker, self._bridge.call("folder", worker.node))
        return f"{self._folders[worker]}/{worker.name}-{next(self._numbers)}.part"


async def alive(worker: WorkerHandle, answer: asyncio.Future[T]) -> T:
    """The answer to a call. Raises ``WorkerDied``."""
    if 0 in await until_first(answer, worker.died.wait()):
        return answer.result()
    raise worker.death()


class RemoteSampler:
    """A ``rollout.Sampler`` on a node."""

    def __init__(self, sampler: Sampler, worker: WorkerHandle, files: StateFiles) -> None:
        self._sampler = sampler
        self._worker = worker
        self._files = files
        self.generate = sampler.generate
        self.release = sampler.release
        self.limits = sampler.limits
        self.retire = sampler.retire
        self.score = sampler.score
        self.stats = sampler.stats

    async def load(self, version: str, path: str) -> str:
        return await self._sampler.load(version, await self._files.bring(self._worker, path))


class RemoteTrainer:
    """A ``training.Trainer`` on a node."""

    def __init__(self, trainer: Trainer, worker: WorkerHandle, files: StateFiles) -> None:
        self._trainer = trainer
        self._worker = worker
        self._files = files
        self.score = trainer.score
        self.get_state = trainer.get_state
        self.set_state = trainer.set_state
        self.close = trainer.close

    async def open(self, policy: str, config: PolicyConfig, path: str, resume: bool) -> StepResult:
        if config.reference:
            config = replace(config, reference=await self._files.bring(self._worker, config.reference))
        if resume:
            there = await self._files.bring(self._worker, path)
            return replace(await self._trainer.open(policy, config, there, True), path=path)
        there = await self._there(path)
        return await self._home(await self._trainer.open(policy, config, there, False), path, new=True)

    async def step(self, policy: str, path: str) -> StepResult:
        return await self._home(await self._trainer.step(policy, await self._there(path)), path)

    async def accumulate(
        self, policy: str, groups: tuple[TrainGroup, ...], probe: Probe | None = None, path: str = ""
    ) -> GroupStats:
        there = await self._there(path)
        return await self._with_step(await self._trainer.accumulate(policy, groups, probe, there), path)

    async def accumulate_together(self, jobs: tuple[Job, ...]) -> tuple[GroupStats | Refused, ...]:
        away = [replace(job, path=await self._there(job.path)) for job in jobs]
        results = await self._trainer.accumulate_together(tuple(away))
        return tuple(
            [
                await self._with_step(one, job.path) if isinstance(one, GroupStats) else one
                for job, one in zip(jobs, results, strict=True)
            ]
        )

    async def _there(self, path: str) -> str:
        return await self._files.fresh(self._worker) if path else ""

    async def _home(self, step: StepResult, path: str, new: bool = False) -> StepResult:
        await self._files.collect(self._worker, step.path, path, new)
        return replace(step, path=path)

    async def _with_step(self, stats: GroupStats, path: str) -> GroupStats:
        return replace(stats, step=await self._home(stats.step, path)) if stats.step else stats


BRIDGE = "marlaas.engine.machine.cluster.bridge:Bridge"
RETRY = 15.0


class Cluster:
    """All methods belong to the engine's event loop."""

    def __init__(
        self,
        address: str,
        home: Home,
        environment: Mapping[str, str],
        base: str,
        named: Callable[[dict[str, Any]], dict[str, Any]],
        *,
        sync: bool = True,
    ) -> None:
        """``base``: its folder here; ``named``: see ``NodeLauncher``.

        With ``sync``, state files survive a power cut.
        """
        self.drained: frozenset[str] = frozenset()
        self._address = address
        self._home = home
        self._environment = environment
        self._base = base
        self._named = named
        self._sync = sync
        self._versions = own_versions()
        self._bridge: WorkerHandle | None = None
        self._starting: asyncio.Task[WorkerHandle] | None = None
        self._failed: tuple[float, ClusterUnreachable] | None = None
        self.files: StateFiles | None = None
        """Over the living bridge; None before the first one."""

    @property
    def log_path(self) -> Path:
        return self._home.logs / "bridge.log"

    async def bridge(self) -> WorkerHandle:
        if self._bridge is not None and self._bridge.alive:
            return self._bridge
        if self._failed is not None and time.monotonic() - self._failed[0] < RETRY:
            raise self._failed[1]
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._start())
            self._starting.add_done_callback(lambda _: setattr(self, "_starting", None))
        return await asyncio.shield(self._starting)

    async def _start(self) -> WorkerHandle:
        model = self._named({"base": self._base})["base"]
        kwargs = {"address": self._address, "versions": self._versions, "model": model}
        try:
            if self._address != AUTO:
                await asyncio.to_thread(check_listens, parse_address(self._address, ClusterSettings().port))
            bridge = await LocalLauncher().start(
                "bridge", BRIDGE, kwargs, log_path=self.log_path, environment=self._environment
            )
        except (MarlaasError, OSError) as error:
            reason = reason_in(str(error))
            why = error if isinstance(error, ClusterUnreachable) else unreached(self._address, reason)
            self._failed = time.monotonic(), why
            raise why from error
        self._failed = None
        self._bridge, self.files = bridge, StateFiles(bridge, self._sync)
        return bridge

    async def nodes(self, ours: Ours = NOTHING, fresh: bool = False) -> tuple[Node, ...]:
        """``ours`` counts as free. Raises ``ClusterUnreachable``."""
        bridge = await self.bridge()
        try:
            found: tuple[Node, ...] = await bridge.call("nodes", fresh)
        except WorkerDied as error:
            raise ClusterUnreachable(f"The bridge to the cluster has died: {error.message}") from error
        facts = await asyncio.to_thread(look_here, self._home, ours)
        refused = trouble_with(facts, self._versions)
        return tuple(replace(node, facts=facts, refused=refused, clock=0.0) if node.here else node for node in found)

    async def usable(self, ours: Ours = NOTHING) -> list[UsableNode]:
        """For the placement. Raises ``ClusterUnreachable``."""
        return usable_nodes(await self.nodes(ours, fresh=True), self.drained)

    async def launcher(self, node: str) -> Launcher:
        return NodeLauncher(await self.bridge(), node, self._named) if node else LocalLauncher()

    async def stop(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        if self._bridge is not None:
            await self._bridge.stop()
            self._bridge = None
