"""Which plugin versions may run on which nodes, and the choice of a node for the next process.

A version's first process is always on the engine's machine: it proves the version. Further ones go to the node with the
fewest busy processes per core, once files and libraries are there.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from weakref import WeakSet

from ...errors import MarlaasError
from ...home import EnvironmentSettings
from ..process.child import Child
from ..process.launch import HERE, Folders, PluginLauncher
from .remote import RemoteNode


class Reach:
    """The nodes of one engine, for plugins' processes."""

    def __init__(
        self,
        cores: int = 1,
        settings: EnvironmentSettings | None = None,
        tell: Callable[[str, str, str], None] = lambda plugin, version, sentence: None,
    ) -> None:
        """``cores``: those of the engine's machine; ``tell`` gets the reason why a version stays off a node."""
        self._cores = cores
        self._settings = settings or EnvironmentSettings()
        self._tell = tell
        self._nodes: dict[str, RemoteNode] = {}
        self._children: WeakSet[Child] = WeakSet()
        self._starting: Counter[str] = Counter()
        self._preparing: set[asyncio.Task[None]] = set()

    def use(self, nodes: Sequence[RemoteNode]) -> None:
        self._nodes = {node.node: node for node in nodes}

    def stays(self, node: str) -> bool:
        return not node or node in self._nodes

    def elsewhere(self, path: Path, folders: Folders) -> int:
        """Cores of other nodes that are ready for the version imported from ``path``.

        Begins to bring it to the other nodes.
        """
        version, cores = path.parent.name, 0
        for node in self._nodes.values():
            if node.ready(version):
                cores += node.cores
            elif node.alive and not node.refused(version) and not node.preparing(version):
                task = asyncio.ensure_future(self._brought(node, path, folders))
                self._preparing.add(task)
                task.add_done_callback(self._preparing.discard)
        return cores

    @contextmanager
    def place(self, path: Path) -> Iterator[PluginLauncher]:
        """Choose a node for a further process: the fewest working ones per core, of equal ones the nearest.

        The process counts there until it has been started.
        """
        version = path.parent.name
        rooms = [((self._busy("") + 1) / max(1, self._cores), 0.0, "")]
        for node in self._nodes.values():
            if node.ready(version):
                rooms.append(((self._busy(node.node) + 1) / max(1, node.cores), node.seconds, node.node))
        *_, chosen = min(rooms)
        self._starting[chosen] += 1
        try:
            yield self._nodes[chosen] if chosen else HERE
        finally:
            self._starting[chosen] -= 1

    def count(self, child: Child) -> None:
        self._children.add(child)

    def refuse(self, node: str, path: Path, plugin: str, reason: str) -> None:
        if node in self._nodes:
            self._nodes[node].refuse(path.parent.name, reason)
            self._say(self._nodes[node], path, plugin)

    def _busy(self, node: str) -> int:
        working = sum(child.node == node and child.dead is None and not child.idle for child in self._children)
        return working + self._starting[node]

    async def _brought(self, node: RemoteNode, path: Path, folders: Folders) -> None:
        confined = folders.runtime.confinement is not None
        try:
            await node.prepare(path, confined, self._settings)
        except MarlaasError:
            return
        self._say(node, path, folders.scratch.name)

    def _say(self, node: RemoteNode, path: Path, plugin: str) -> None:
        if reason := node.refused(path.parent.name):
            self._tell(plugin, path.parent.name, f"its processes stay off {node.name}: {reason}")
