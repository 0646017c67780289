"""The bridge: the worker process that speaks to Ray for the engine, which itself never imports it.

Ray ends its driver's process when the head or this machine's part of it dies; so the driver is not the engine. When
the bridge ends, Ray ends its job, and with it the node hosts and their children. It decides nothing.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any

from ..errors import WorkerDied
from .inventory import NodeFacts, trouble_with
from .node import Node
from .node_workers import NodeWorkers
from .unreached import unreached
from .versions import Versions

RECONNECT = "10"
"""Seconds for which this driver tries to reach a head that does not answer, before Ray ends it; Ray's own are 60."""
ANSWER = 60.0
"""Seconds within which a node must describe itself; it may measure a device."""


class Bridge(NodeWorkers):
    """A worker class (``engine/workers``): started by the engine, and ended with it."""

    def __init__(self, address: str, versions: Versions) -> None:
        """Connect to the Ray at ``address``: ``HOST:PORT``, or ``auto`` for that of this machine.

        ``versions`` are the engine's. Raises ``ClusterUnreachable``.
        """
        os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", RECONNECT)
        os.environ.setdefault("RAY_COLOR_PREFIX", "0")  # what Ray writes into the log is no picture
        import ray

        try:
            ray.init(address=address, namespace="marlaas", log_to_driver=False, configure_logging=False)
        except Exception as error:
            raise unreached(address, _all_said(error)) from error
        from .ray_host import RayHost

        super().__init__(RayHost, ray.put)
        self._ray = ray
        self._here: str = ray.get_runtime_context().get_node_id()
        self._versions = versions

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
        link = self.link(node)
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


def _all_said(error: BaseException | None) -> str:
    """An error with those that it comes from: Ray's own often only says that something failed."""
    return "" if error is None else f"{error}\n{_all_said(error.__cause__)}"
