"""Workers on nodes, and their state files: what the engine asks of the bridge beside who is in the cluster.

Knows nothing of Ray: a node host is whatever answers its calls.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .node_link import Host, NodeLink
from .relay import Begin, Close, Data, Ended, Event, Kill
from .shipping import Shipping


class NodeWorkers:
    """The part of a worker class that relays; all methods belong to its event loop."""

    def __init__(self, host: Callable[[str], Host], put: Callable[[bytes], Any]) -> None:
        """``host`` starts a node's host, ``put`` has bytes kept for nodes to pull and returns a reference to them."""
        self._host = host
        self._links: dict[str, NodeLink] = {}
        self._of: dict[int, NodeLink] = {}
        """The link of each child."""
        self._shipping = Shipping(put)

    async def resolve(self, node: str, kwargs: dict[str, Any]) -> dict[str, Any]:
        """A worker's arguments with the folders of a node; see ``NodeHost.resolve``. Raises ``WorkerDied``, too."""
        answer: dict[str, Any] = await self.link(node).call("resolve", kwargs)
        return answer

    async def start(self, node: str, begin: Begin, stream_to: Callable[[Event], None]) -> Ended:
        """Start a child on a node, and return when it has ended; ``stream_to`` gets all that it does."""
        link = self._of[begin.child] = self.link(node)
        try:
            return await link.child(begin, stream_to)
        finally:
            self._of.pop(begin.child, None)

    async def tell(self, event: Data | Close | Kill) -> None:
        """What the engine wants of a child; one that has ended is fine."""
        if event.child in self._of:
            self._of[event.child].tell(event)

    async def bring(self, node: str, path: str) -> str:
        """Have the state file at ``path`` of this machine on a node; returns its path there.

        Raises ``AdapterError`` where it cannot be read here or kept there, and ``WorkerDied`` where the node is lost.
        """
        return await self._shipping.bring(self.link(node), Path(path))

    async def collect(self, node: str, there: str, path: str, sync: bool, new: bool) -> None:
        """Bring the state file at ``there`` of a node to ``path`` on this machine, where it is whole or not at all.

        ``sync`` makes it survive a power cut; ``new``: it is version 0. Raises as ``bring`` does.
        """
        await self._shipping.collect(self.link(node), there, Path(path), sync, new)

    async def folder(self, node: str) -> str:
        """A folder on a node for state files that a worker writes there. Raises ``WorkerDied``."""
        found: str = await self.link(node).call("folder")
        return found

    def link(self, node: str) -> NodeLink:
        """The way to a node's host, which is started if there is none."""
        link = self._links.get(node)
        if link is None or link.lost:
            link = self._links[node] = NodeLink(self._host(node))
        return link
