"""Starts a worker somewhere: the engine does not know where, and a handle does not, either.

``LocalLauncher`` is for the engine's own machine; ``cluster.NodeLauncher`` for another.
``tests/engine/workers/contract.py`` holds the tests that each passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from .child import NOTHING
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
        """Start a worker and wait until it takes calls; arguments and errors are those of ``WorkerHandle.spawn``.

        ``log_path`` is on the engine's machine, wherever the worker runs. A ``template`` is of use there alone.
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
        return await WorkerHandle.spawn(
            name, factory, kwargs, cores, log_path=log_path, environment=environment, nice=nice, template=template
        )
