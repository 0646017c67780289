"""Nodes as the placement sees them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..devices import Link, UsableNode
from .node import Node


def usable_nodes(nodes: Sequence[Node], drained: Collection[str]) -> list[UsableNode]:
    """Those of the nodes that are alive; people have ``drained`` the ones of these names."""
    return [
        UsableNode(
            node="" if node.here else node.id,
            name=node.name,
            machine=node.machine,
            software=node.software,
            free=node.free_bytes,
            link=Link() if node.here else node.link,
            draining=node.draining or node.name in drained,
            refused=node.refused,
            reasons=node.left_out,
        )
        for node in nodes
        if node.alive
    ]


def link_of(calls: Sequence[float], sent: int, seconds: float) -> Link:
    """The link to a node, from the seconds of some empty calls and those of one call with ``sent`` bytes.

    The fastest empty call counts: others waited for a processor and not for the link.
    """
    call = min(calls)
    return Link(call, max(0.0, seconds - call) / sent if sent else 0.0)
