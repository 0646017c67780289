"""Starts a worker somewhere: the engine does not know where, and a handle does not, either.

``LocalLauncher`` is for the engine's own machine; ``cluster.NodeLauncher`` for another.
``tests/engine/workers/contract.py`` holds the tests that each passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from .child import NOTHING, LocalChild
from .forked import Template
from .handle import WorkerHandle


class Launcher(Protocol):
    """Starts workers on one machine. It never restarts one: that is the engine's decision."""

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
        """Start a child that builds ``factory`` (``"module:Class"``) with ``kwargs``, and wait until it takes calls.

        ``cores`` pins it, one thread each; empty leaves it free. It has the environment of whoever starts it there,
        with what ``environment`` sets (the cards that it may see, say), and runs at niceness ``nice``, 0 to 19. What it
        prints is appended to ``log_path``, which is on the engine's machine, wherever the worker runs. A ``template``,
        which is of use there alone, forks it; it then shares that one's memory. Raises what the constructor raised if
        that is a ``MarlaasError`` or ``ValueError``, ``CallFailed`` for any other exception, and ``WorkerDied`` with
        the last line of the log when the process just ended.
        """


class LocalLauncher:
    """Starts children of this process."""

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
        """See ``Launcher``."""
        child = await LocalChild.start(
            name, cores, log_path=log_path, environment=environment, nice=nice, template=template
        )
        return await WorkerHandle.begin(child, name, factory, kwargs, log_path)
