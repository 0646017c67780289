"""The bridge: the worker process that speaks to Ray for the engine, which itself never imports it.

Ray ends its driver's process when the head or this machine's part of it dies; so the driver is not the engine. When
the bridge ends, Ray ends its job, and with it the node hosts and their children. It decides nothing.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..errors import ClusterUnreachable, WorkerDied
from .inventory import NodeFacts, trouble_with
from .node import Node
from .relay import Begin, Close, Data, Ended, Event, Kill
from .shipping import Shipping
from .versions import Versions

RECONNECT = "10"
"""Seconds for which this driver tries to reach a head that does not answer, before Ray ends it; Ray's own are 60."""
ANSWER = 60.0
"""Seconds within which a node must describe itself; it may measure a device."""


class Bridge:
    """A worker class (``engine/workers``): started by the engine, and ended with it."""

    def __init__(self, address: str, versions: Versions, delay: float = 0.0) -> None:
        """Connect to the Ray at ``address``: ``HOST:PORT``, or ``auto`` for that of this machine.

        ``versions`` are the engine's. ``delay`` is added to every way to a node, in seconds. Raises
        ``ClusterUnreachable``.
        """
        os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", RECONNECT)
        import ray

        try:
            ray.init(address=address, namespace="marlaas", log_to_driver=False, configure_logging=False)
        except Exception as error:
            raise ClusterUnreachable(
                f"No cluster answers at {address}: {str(error).splitlines()[0]}",
                "`marlaas cluster status` says how this machine stands.",
            ) from error
        self._ray = ray
        self._here: str = ray.get_runtime_context().get_node_id()
        self._versions = versions
        self._delay = delay
        self._links: dict[str, Any] = {}
        self._of: dict[int, Any] = {}
        """The link of each child."""
        self._shipping = Shipping()

    async def nodes(self, cards: Mapping[str, frozenset[str]], fresh: bool = False) -> tuple[Node, ...]:
        """All nodes: what they have, and why some are not used. ``cards`` are those that the engine's workers hold.

        The engine's own machine is among them without what it has: the engine looks there by itself. ``fresh`` looks
        anew instead of taking what was seen within half a minute.
        """
        seen = await asyncio.to_thread(self._ray.nodes)
        alive = {each["NodeName"] for each in seen if each["Alive"]}
        shown = [each for each in seen if each["Alive"] or each["NodeName"] not in alive]
        return tuple(await asyncio.gather(*(self._node(each, cards, fresh) for each in shown)))

    async def _node(self, seen: Mapping[str, Any], cards: Mapping[str, frozenset[str]], fresh: bool) -> Node:
        node, name, address = seen["NodeID"], seen["NodeName"], seen["NodeManagerAddress"]
        if not seen["Alive"]:
            return Node(node, name, address, alive=False)
        if node == self._here:
            return Node(node, name, address, here=True)
        link = self._link(node)
        try:
            async with asyncio.timeout(ANSWER):
                facts: NodeFacts = await link.call("describe", cards.get(node, frozenset()), fresh)
        except TimeoutError:
            return Node(node, name, address, refused="It does not answer.")
        except WorkerDied:
            return Node(node, name, address, refused="Its node host has ended, or the network to it is down.")
        except Exception as error:
            return Node(node, name, address, refused=f"It could not be looked at: {type(error).__name__}.")
        return Node(
            *(node, name, address),
            versions=facts.versions,
            machine=facts.usable.machine,
            software=facts.software,
            free_bytes=facts.free_bytes,
            refused=trouble_with(facts, self._versions),
            left_out=facts.usable.reasons,
            base=facts.base,
            link=link.link,
            clock=link.clock,
        )

    async def resolve(self, node: str, kwargs: dict[str, Any]) -> dict[str, Any]:
        """A worker's arguments with the folders of a node; see ``NodeHost.resolve``. Raises ``WorkerDied``, too."""
        answer: dict[str, Any] = await self._link(node).call("resolve", kwargs)
        return answer

    async def start(self, node: str, begin: Begin, heard: Callable[[Event], None]) -> Ended:
        """Start a child on a node, and return when it has ended; ``heard`` is told all that it does."""
        link = self._of[begin.child] = self._link(node)
        try:
            ended: Ended = await link.child(begin, heard)
            return ended
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
        return await self._shipping.bring(self._link(node), Path(path))

    async def collect(self, node: str, there: str, path: str, sync: bool, new: bool) -> None:
        """Bring the state file at ``there`` of a node to ``path`` on this machine, where it is whole or not at all.

        ``sync`` makes it survive a power cut; ``new``: it is version 0. Raises as ``bring`` does.
        """
        await self._shipping.collect(self._link(node), there, Path(path), sync, new)

    async def folder(self, node: str) -> str:
        """A folder on a node for state files that a worker writes there. Raises ``WorkerDied``."""
        found: str = await self._link(node).call("folder")
        return found

    def _link(self, node: str) -> Any:
        from .node_link import NodeLink

        link = self._links.get(node)
        if link is None or link.lost:
            link = self._links[node] = NodeLink(node, self._delay)
        return link
