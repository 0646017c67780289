"""A bridge whose node hosts are objects of its own process: all of the seam but Ray itself."""

from __future__ import annotations

from typing import Any

from marlaas.engine.home.paths import Home, find_home
from marlaas.engine.machine.cluster.bridge import Host, HostLost, NodeWorkers
from marlaas.engine.machine.cluster.node_host import NodeHost


class HostHere:
    """Implements ``bridge.Host``."""

    def __init__(self, node: str) -> None:
        self.host = NodeHost(Home(find_home().root / node))
        self.lost = ""

    async def call(self, method: str, *args: Any) -> Any:
        if self.lost:
            raise HostLost(self.lost)
        return await getattr(self.host, method)(*args)

    def kill(self) -> None:
        for child in list(self.host._children.values()):
            child.orders.put_nowait(None)


class Ready:
    """Stands for Ray's reference to what is there already."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __await__(self) -> Any:
        yield from ()
        return self._value


class BridgeWithoutRay(NodeWorkers):
    """Its nodes have any name."""

    def __init__(self) -> None:
        super().__init__(self._start_host, self._store)
        self.stored = 0
        self._hosts: dict[str, HostHere] = {}

    def _start_host(self, node: str) -> Host:
        self._hosts[node] = HostHere(node)
        return self._hosts[node]

    async def lose(self, node: str, reason: str) -> None:
        """The node's host dies; whoever calls it next learns that."""
        self._hosts[node].lost = reason
        await self.link(node).call("echo")

    def _store(self, data: bytes) -> Ready:
        self.stored += 1
        return Ready(data)

    async def count(self) -> int:
        """Files that were put into the object store."""
        return self.stored
