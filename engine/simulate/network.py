"""The time to send bytes between the head and a node: a link's latency, and its bandwidth, shared in turn.

The head's own network is one more link for all traffic. Nodes without a link are the head itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from .cluster_file import LinkSpec


class Link:
    """One link: bytes go over it one after the other."""

    def __init__(self, spec: LinkSpec) -> None:
        self.spec = spec
        self.bytes = 0
        self.busy = 0.0
        self.dark = 0.0
        """Until then nothing goes over it."""
        self._free = 0.0

    def send(self, now: float, size: int) -> float:
        self.bytes += size
        now = max(now, self.dark)
        if not self.spec.bandwidth:
            return now
        took = size / self.spec.bandwidth
        self._free = max(self._free, now) + took
        self.busy += took
        return self._free


class Network:
    """All links."""

    def __init__(self, head: LinkSpec, nodes: Mapping[str, LinkSpec]) -> None:
        self.head = Link(head)
        self._links = {name: Link(spec) for name, spec in nodes.items() if spec != LinkSpec()}

    def darken(self, node: str, until: float) -> None:
        link = self._links[node]
        link.dark = max(link.dark, until)

    def seconds(self, node: str, size: int, now: float) -> float:
        """Seconds from now until this many bytes have gone between the head and a node."""
        link = self._links.get(node)
        if link is None:
            return 0.0
        arrives = max(self.head.send(now, size), link.send(now, size))
        return arrives - now + link.spec.latency + self.head.spec.latency
