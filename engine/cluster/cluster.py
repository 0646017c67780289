"""The cluster as the engine has it: the bridge, started when it is needed and again after its death, and what it gives.

Where no cluster answers the engine goes on with its own machine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..devices import NOTHING, Ours, UsableNode
from ..errors import ClusterUnreachable, MarlaasError, WorkerDied
from ..home import ClusterSettings, Home
from ..workers import Launcher, LocalLauncher, WorkerHandle
from .inventory import look_here, trouble_with
from .joining.addresses import AUTO, check_listens, parse_address
from .launcher import NodeLauncher
from .node import Node
from .state_files import StateFiles
from .unreached import unreached
from .usable import usable_nodes
from .versions import own_versions

BRIDGE = "marlaas.engine.cluster.bridge:Bridge"
RETRY = 15.0
"""Seconds after which a cluster that did not answer is asked again."""


class Cluster:
    """One engine's cluster. All methods belong to the engine's event loop."""

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
        """``environment`` is that of a Ray driver (``ray_environment``), ``base`` the folder of the base here.

        ``named``: see ``NodeLauncher``.

        ``sync``: whether state files at home survive a power cut.
        """
        self.drained: frozenset[str] = frozenset()
        """Names of nodes that get nothing new."""
        self.held: Mapping[str, frozenset[str]] = {}
        """``Gpu.uuid`` of the cards that the engine's workers are on, by node."""
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
        self._files: StateFiles | None = None
        self._lack: dict[str, str] = {}
        """Nodes that were found to be without the base, and what they say."""

    @property
    def log_path(self) -> Path:
        """The bridge's log."""
        return self._home.logs / "bridge.log"

    async def bridge(self) -> WorkerHandle:
        """The bridge that lives, started if need be. Raises ``ClusterUnreachable``, at once for a while after a try."""
        if self._bridge is not None and self._bridge.alive:
            return self._bridge
        if self._failed is not None and time.monotonic() - self._failed[0] < RETRY:
            raise self._failed[1]
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._start())
            self._starting.add_done_callback(lambda _: setattr(self, "_starting", None))
        return await asyncio.shield(self._starting)

    async def _start(self) -> WorkerHandle:
        kwargs = {"address": self._address, "versions": self._versions}
        try:
            if self._address != AUTO:  # Ray would try for half a minute to reach what is not there
                await asyncio.to_thread(check_listens, parse_address(self._address, ClusterSettings().port))
            bridge = await LocalLauncher().start(
                "bridge", BRIDGE, kwargs, log_path=self.log_path, environment=self._environment
            )
        except (MarlaasError, OSError) as error:
            found = error if isinstance(error, ClusterUnreachable) else None
            why = found or unreached(self._address, str(error))
            self._failed = time.monotonic(), why
            raise why from error
        self._failed = None
        self._bridge, self._files = bridge, StateFiles(bridge, self._sync)
        return bridge

    async def nodes(self, ours: Ours = NOTHING, fresh: bool = False) -> tuple[Node, ...]:
        """All nodes; what is ``ours`` on the engine's machine counts as free. Raises ``ClusterUnreachable``."""
        bridge = await self.bridge()
        try:
            found: tuple[Node, ...] = await bridge.call("nodes", dict(self.held), fresh)
        except WorkerDied as error:
            raise ClusterUnreachable(f"The bridge to the cluster has died: {error.message}") from error
        facts = await asyncio.to_thread(look_here, self._home, ours)
        return tuple(
            replace(
                node,
                versions=facts.versions,
                machine=facts.usable.machine,
                software=facts.software,
                free_bytes=facts.free_bytes,
                refused=trouble_with(facts, self._versions),
                left_out=facts.usable.reasons,
                base=facts.base,
                clock=0.0,
            )
            if node.here
            else replace(node, refused=node.refused or self._lack.get(node.id, ""))
            for node in found
        )

    async def usable(self, ours: Ours = NOTHING) -> list[UsableNode]:
        """Nodes as the placement sees them; one without the base is refused. Raises ``ClusterUnreachable``."""
        found = await asyncio.gather(*(self._with_base(node) for node in await self.nodes(ours, fresh=True)))
        return usable_nodes(found, self.drained)

    async def _with_base(self, node: Node) -> Node:
        known = self._lack.pop(node.id, "")  # a person may have copied it there
        if node.here or node.refused not in ("", known) or not node.alive:
            return node
        bridge = await self.bridge()
        try:
            await bridge.call("resolve", node.id, self._named({"base": self._base}))
        except (MarlaasError, ValueError) as error:
            self._lack[node.id] = str(error)
            return replace(node, refused=str(error))
        return replace(node, refused="")

    async def launcher(self, node: str) -> Launcher:
        """Starts workers on a node; empty: the engine's machine. Raises ``ClusterUnreachable``."""
        return NodeLauncher(await self.bridge(), node, self._named) if node else LocalLauncher()

    @property
    def files(self) -> StateFiles | None:
        """Carries state files over the bridge that lives; None before there was one."""
        return self._files

    async def stop(self) -> None:
        """End the bridge, and with it all workers on nodes."""
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        if self._bridge is not None:
            await self._bridge.stop()
            self._bridge = None
