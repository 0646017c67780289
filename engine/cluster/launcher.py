"""Starts workers on a node: the same programs as on the engine's machine, over the bridge."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..workers import NOTHING, Template, WorkerHandle
from .relay import Begin
from .remote_child import RemoteChild

numbers = itertools.count(1)
"""Numbers of children: none is used twice in an engine."""


class NodeLauncher:
    """Implements ``workers.Launcher`` for one node."""

    def __init__(
        self,
        bridge: WorkerHandle,
        node: str,
        named: Callable[[dict[str, Any]], dict[str, Any]] = lambda kwargs: kwargs,
    ) -> None:
        """``named`` names the folders in a worker's arguments by what they are for; see ``node_paths``."""
        self._bridge = bridge
        self._node = node
        self._named = named

    async def start(
        self,
        name: str,
        factory: str,
        kwargs: dict[str, Any],
        cores: tuple[int, ...] = (),
        *,
        log_path: Path,
        environment: Mapping[str, str] = NOTHING,
        nice: int = 0,
        template: Template | None = None,
    ) -> WorkerHandle:
        """See ``Launcher``. Raises ``BaseModelError``, too, where the node does not have the base."""
        there = await self._bridge.call("resolve", self._node, self._named(kwargs))
        begin = Begin(next(numbers), name, cores, dict(environment), nice)
        child = RemoteChild(self._bridge, self._node, begin, log_path)
        return await WorkerHandle.begin(child, name, factory, there, log_path)
