"""Has a process host on every other node on which environments and scores may run, for as long as it is one.

They outlive the samplers and trainers, which start anew with every plan. A host that dies is started again as long as
its node is there; what ran in it is played again elsewhere meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic

from ..devices import EnvironmentHost
from ..environments import EnvironmentService, RemoteNode
from ..errors import MarlaasError
from ..workers import WorkerHandle
from .processes import Launchers

FACTORY = "marlaas.engine.environments.nodes.host:ProcessHost"
LOOK = 1.0
"""Seconds between two looks at what there should be."""
AGAIN = 15.0
"""Seconds after which a host is started again that could not be started, or died."""


class EnvironmentHosts:
    """The process hosts of one engine."""

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
        in place of which each node has its own."""
        self._environments = environments
        self._wanted = hosts
        self._launcher = launcher
        self._logs = logs
        self._scratch = scratch
        self._nice = nice
        self._log = log
        self._nodes: dict[str, RemoteNode] = {}
        self._handles: dict[str, WorkerHandle] = {}
        self._tried: dict[str, float] = {}
        """When a host was started last, by node."""
        self._told: dict[str, str] = {}
        """What was said last of a node on which none could be started."""

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK)

    async def look(self) -> None:
        """Start what is missing, end what should not be there any more, and tell the environments of it."""
        wanted = {host.node: host for host in self._wanted() if host.node}
        for node, handle in list(self._handles.items()):
            if not handle.alive:
                self._log("node", f"{handle.death().message} Its environments are played elsewhere.", "warning")
                await self._end(node)
        missing = [host for node, host in wanted.items() if node not in self._handles and self._due(node)]
        await asyncio.gather(*(self._start(host) for host in missing))
        self._environments.use_nodes([found for node, found in self._nodes.items() if node in wanted])
        for node in [node for node in self._handles if node not in wanted and not self._nodes[node].running]:
            await self._end(node)

    async def stop(self) -> None:
        """End all of them."""
        await asyncio.gather(*(self._end(node) for node in list(self._handles)))

    def _due(self, node: str) -> bool:
        return monotonic() - self._tried.get(node, -AGAIN) >= AGAIN

    async def _start(self, host: EnvironmentHost) -> None:
        self._tried[host.node] = monotonic()
        name = f"environments at {host.name}"
        kwargs = {"scratch": str(self._scratch), "nice": self._nice}
        try:
            launcher = await self._launcher(host.node)
            log_path = self._logs / f"environments-{host.name}.log"
            handle = await launcher.start(name, FACTORY, kwargs, log_path=log_path)
        except (MarlaasError, OSError) as error:
            if self._told.get(host.node) != (told := str(error)):
                self._told[host.node] = told
                self._log("node", f"No environments can run on {host.name}: {told}", "warning")
            return
        self._told.pop(host.node, None)
        self._handles[host.node] = handle
        self._nodes[host.node] = RemoteNode(host.node, host.name, host.cores, handle, host.call)

    async def _end(self, node: str) -> None:
        del self._nodes[node]
        await self._handles.pop(node).stop()
