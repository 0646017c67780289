"""A bridge whose node hosts are objects of its own process: all of the seam but Ray itself."""

from __future__ import annotations

from typing import Any

from marlaas.engine.home.paths import Home, find_home
from marlaas.engine.machine.cluster.bridge import Host, HostLost, NodeWorkers
from marlaas.engine.machine.cluster.node_host import NodeHost


class HostHere:
    """Implements ``node_link.Host``; what a call returns is its own reference."""

    def __init__(self, node: str) -> None:
        self.host = NodeHost(Home(find_home().root / node))
        self.lost = ""
        self.full = False
        """Whether an object store would refuse large things."""
        self.pulled = 0

    async def call(self, method: str, *args: Any) -> tuple[Any, Any]:
        if self.lost:
            raise HostLost(self.lost)
        if self.full and method in ("pull", "read") and len(args) < 3:
            raise MemoryError("The object store is full.")
        if method == "pull":
            self.pulled += 1
        answer = await getattr(self.host, method)(*args)
        return Ready(answer), answer

    def kill(self) -> None:
        for child in list(self.host._children.values()):
            if child._process is not None:
                child._process.kill()


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
        super().__init__(self._start_host, Ready)
        self._hosts: dict[str, HostHere] = {}

    def _start_host(self, node: str) -> Host:
        self._hosts[node] = HostHere(node)
        return self._hosts[node]

    async def lose(self, node: str, reason: str) -> None:
        """The node's host dies; whoever calls it next learns that."""
        self._hosts[node].lost = reason
        await self.link(node).call("echo")

    async def fill(self, node: str) -> None:
        """The object store refuses large things from now on."""
        await self.link(node).call("echo")
        self._hosts[node].full = True

    async def counts(self) -> tuple[int, int, int]:
        """Files that were put into the store, that went in pieces, and calls that had a node pull one."""
        return self._shipping.put, self._shipping.pieced, sum(host.pulled for host in self._hosts.values())
