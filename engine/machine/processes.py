"""Worker processes: started together, replaced one by one, and the environments' hosts."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from time import monotonic
from typing import Any

from ..devices.machine import EnvironmentHost, SamplerAssignment
from ..environments.nodes.remote import RemoteNode
from ..environments.service import EnvironmentService
from ..errors import MarlaasError, OutOfMemory, WorkerDied
from ..models.memory import LEAST
from ..racing import until_first
from ..store.rows import Yielding
from .plan import LOCAL, PlacementPlan, WorkerSpec
from .workers.child import Template
from .workers.handle import Launcher, WorkerHandle


@dataclass(frozen=True)
class Aftermath:
    """The message and the consequence after workers died at the same time."""

    words: str
    mended: bool


class MemoryBackoff:
    """Halves the conversations of samplers that ran out of memory, for the engine's lifetime."""

    def __init__(self) -> None:
        self._most: dict[tuple[str, str, tuple[str, ...]], int] = {}

    def after(
        self,
        deaths: Mapping[str, WorkerDied],
        placement_plan: PlacementPlan,
        held: Mapping[str, int],
        devices: Mapping[str, str],
    ) -> Aftermath:
        """Learn of deaths, by worker: samplers ``held`` this many conversations each; ``devices`` are in words."""
        samplers = {assignment.name: assignment for assignment in placement_plan.placement.samplers}
        sentences, mended = [], True
        for name, death in deaths.items():
            words, count = death.message, held.get(name, 0)
            if isinstance(death, OutOfMemory) and name in samplers and count:
                where = f" on {devices[name]}" if samplers[name].place.gpus else ""
                words = f"The sampler {name} ran out of memory{where}"
                if count > LEAST:
                    fewer = self._most[_key(samplers[name])] = max(LEAST, count // 2)
                    sentences.append(f"{words}; it goes on with {fewer} conversations instead of {count}.")
                    continue
                words += (
                    f" with {count} conversations, and fewer are not tried. Lower `context` under [rollout] in"
                    " marlaas.toml, choose a smaller base, or leave it more memory."
                )
            sentences.append(f"{words} A new one takes its place.")
            mended = False
        return Aftermath(" ".join(sentences), mended)

    def fitted(self, placement_plan: PlacementPlan) -> PlacementPlan:
        pairs = zip(placement_plan.placement.samplers, placement_plan.memory, strict=True)
        memory = (
            replace(plan, sequences=min(plan.sequences, self._most.get(_key(sampler), plan.sequences)))
            for sampler, plan in pairs
        )
        return replace(placement_plan, memory=tuple(memory))


def _key(sampler: SamplerAssignment) -> tuple[str, str, tuple[str, ...]]:
    return sampler.name, sampler.kind, sampler.place.gpus


class Preemptible:
    """Runs work, but not while the engine yields; such work is cancelled and restarted later."""

    def __init__(self) -> None:
        self.yielding: Yielding | None = None
        self._wanted = asyncio.Event()
        self._wanted.set()
        self._work: asyncio.Future[None] | None = None

    async def wanted(self) -> None:
        await self._wanted.wait()

    async def during(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work``, unless the engine yields, and cancel it when yielding begins. Raises the work's errors."""
        if self.yielding is not None:
            work.close()
            return
        self._work = task = asyncio.ensure_future(work)
        try:
            await asyncio.wait((task,))
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if not task.cancelled():
            task.result()

    def begin(self, yielding: Yielding) -> None:
        """Cancel running work, and let none begin; may be called again with another reason."""
        self.yielding = yielding
        self._wanted.clear()
        if self._work is not None:
            self._work.cancel()

    async def begun(self) -> None:
        if self._work is not None:
            await asyncio.gather(self._work, return_exceptions=True)

    def end(self) -> None:
        """Allow work again, unless ``Yielding.holds`` forbids tasks to end the yielding."""
        if self.yielding is not None and not self.yielding.holds:
            self.yielding = None
            self._wanted.set()


TEMPLATE = "template"
Launchers = Callable[[str], Awaitable[Launcher]]


async def _local(node: str) -> Launcher:
    return LOCAL


class WorkerProcesses:
    """The processes of one incarnation; those of the next start once these have ended."""

    def __init__(self, logs: Path, nice: int, launcher: Launchers = _local) -> None:
        """``launcher`` starts workers on a node; empty: this machine.

        Raises ``MarlaasError`` if the node cannot be reached.
        """
        self.handles: dict[str, WorkerHandle] = {}
        self.cards: frozenset[str] = frozenset()
        self._logs = logs
        self._nice = nice
        self._launcher = launcher
        self._template: Template | None = None
        self._endings: set[asyncio.Future[None]] = set()

    async def start(self, specs: Sequence[WorkerSpec], cards: Collection[str]) -> None:
        """Start all on ``cards``. Raises the first error of those that cannot start; the others keep running."""
        self.cards = frozenset(cards)
        self._template = await _template(specs, self._logs)
        for result in await asyncio.gather(*map(self._spawn, specs), return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def start_again(self, spec: WorkerSpec) -> None:
        await self._spawn(spec)

    async def _spawn(self, spec: WorkerSpec) -> None:
        template = self._template
        if template is not None and not (_forks(spec) and len(spec.cores) == template.threads and template.alive):
            template = None
        launcher = await self._launcher(spec.node)
        self.handles[spec.name] = await spec.spawn(self._logs, self._nice, template, launcher)

    def forget(self, name: str) -> None:
        ending = asyncio.ensure_future(_end(self.handles.pop(name)))
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)

    async def until_death(self, *others: asyncio.Event) -> dict[str, WorkerDied]:
        ends = [*others, *(handle.died for handle in self.handles.values())]
        await until_first(*(end.wait() for end in ends))
        return {name: handle.death() for name, handle in self.handles.items() if handle.died.is_set()}

    async def stop(self) -> None:
        for name in list(self.handles):
            self.forget(name)
        if self._endings:
            await asyncio.wait(self._endings)
        if self._template is not None:
            await self._template.stop()
            self._template = None
        self.cards = frozenset()


def _forks(spec: WorkerSpec) -> bool:
    return bool(spec.modules) and not spec.node


async def _template(specs: Sequence[WorkerSpec], logs: Path) -> Template | None:
    """A template for the largest set of forkable workers with equal cores.

    None for a single worker, if the system's libraries do not survive a fork, or if it cannot start: workers then start
    by themselves.
    """
    able = [spec for spec in specs if _forks(spec)]
    threads, many = max(Counter(len(spec.cores) for spec in able).items(), key=itemgetter(1), default=(0, 0))
    if many < 2 or sys.platform != "linux":
        return None
    modules = dict.fromkeys(module for spec in able if len(spec.cores) == threads for module in spec.modules)
    with contextlib.suppress(WorkerDied):
        return await Template.start(tuple(modules), threads, able[0].environment, logs / f"{TEMPLATE}.log")
    return None


async def _end(handle: WorkerHandle) -> None:
    with contextlib.suppress(ProcessLookupError):
        await handle.stop()


FACTORY = "marlaas.engine.environments.nodes.host:ProcessHost"
LOOK = 1.0
"""Seconds between two checks."""
AGAIN = 15.0


class EnvironmentHosts:
    """The hosts of environments on nodes. They outlive samplers and trainers, which restart with every plan.

    A host that dies is restarted while its node exists; its work is run again elsewhere meanwhile.
    """

    def __init__(
        self,
        environments: EnvironmentService,
        hosts: Callable[[], Sequence[EnvironmentHost]],
        launcher: Launchers,
        logs: Path,
        scratch: Path,
        nice: int,
        log: Callable[[str, str, str], None],
    ) -> None:
        """``hosts`` are those of the present plan; ``launcher`` as of ``WorkerProcesses``; ``scratch`` is this home's,
        and each node has its own.
        """
        self._environments = environments
        self._wanted = hosts
        self._launcher = launcher
        self._logs = logs
        self._kwargs = {"scratch": str(scratch), "nice": nice}
        self._log = log
        self._nodes: dict[str, RemoteNode] = {}
        self._handles: dict[str, WorkerHandle] = {}
        self._tried: dict[str, float] = {}
        self._failures: dict[str, str] = {}

    async def run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(LOOK)

    async def look(self) -> None:
        wanted = {host.node: host for host in self._wanted() if host.node}
        for node, handle in list(self._handles.items()):
            if not handle.alive:
                self._log("node", f"{handle.death().message} Its environments are played elsewhere.", "warning")
                await self._end(node)
        due = [node for node in wanted if monotonic() - self._tried.get(node, -AGAIN) >= AGAIN]
        await asyncio.gather(*(self._start(wanted[node]) for node in due if node not in self._handles))
        self._environments.use_nodes([remote for node, remote in self._nodes.items() if node in wanted])
        for node in [node for node in self._handles if node not in wanted and not self._nodes[node].running]:
            await self._end(node)

    async def stop(self) -> None:
        await asyncio.gather(*map(self._end, list(self._handles)))

    async def _start(self, host: EnvironmentHost) -> None:
        self._tried[host.node] = monotonic()
        log_path = self._logs / f"environments-{host.name}.log"
        try:
            launcher = await self._launcher(host.node)
            name = f"environments at {host.name}"
            handle = await launcher.start(name, FACTORY, self._kwargs, log_path=log_path)
        except (MarlaasError, OSError) as error:
            if self._failures.get(host.node) != str(error):
                self._failures[host.node] = str(error)
                self._log("node", f"No environments can run on {host.name}: {error}", "warning")
            return
        self._failures.pop(host.node, None)
        self._handles[host.node] = handle
        self._nodes[host.node] = RemoteNode(host.node, host.name, host.cores, handle, host.call)

    async def _end(self, node: str) -> None:
        del self._nodes[node]
        await self._handles.pop(node).stop()
