"""An engine with a long way to each of its nodes: ``python -m tests.slow.cluster.delayed HOME``.

Every call of its bridge to a node host, and every answer, takes ``SECONDS`` longer. All else is the engine's own.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from marlaas.engine.daemon import control
from marlaas.engine.home.paths import Home
from marlaas.engine.machine.cluster import cluster
from marlaas.engine.machine.cluster.bridge import Bridge, Host
from marlaas.engine.machine.cluster.node import Versions
from marlaas.engine.machine.cluster.node_host import Folder
from tools.ray_nodes import ROOT

SECONDS = "TEST_LINK_SECONDS"
PATIENCE = 120.0


class DelayedHost:
    """Implements ``bridge.Host`` over another one."""

    def __init__(self, host: Host, seconds: float) -> None:
        self._host = host
        self._seconds = seconds
        self.kill = host.kill

    async def call(self, method: str, *args: Any) -> Any:
        await asyncio.sleep(self._seconds)
        answer = await self._host.call(method, *args)
        await asyncio.sleep(self._seconds)
        return answer


class DelayedBridge(Bridge):
    """A bridge over a long link."""

    def __init__(self, address: str, versions: Versions, model: Folder) -> None:
        super().__init__(address, versions, model)
        start, seconds = self._host, float(os.environ[SECONDS])
        self._host = lambda node: DelayedHost(start(node), seconds)


@contextmanager
def engine_over(seconds: float, home: Home) -> Iterator[None]:
    """Such an engine while the block runs."""
    control.create_database(home)
    with open(home.logs / "engine.log", "ab") as log:
        engine = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.slow.cluster.delayed", str(home.root)],
            env=os.environ | {"PYTHONPATH": str(ROOT), SECONDS: str(seconds)},
            stdout=log,
            stderr=log,
        )
    with engine:
        try:
            deadline = time.monotonic() + PATIENCE
            while not control.alive(home):
                assert engine.poll() is None and time.monotonic() < deadline, log.name
                time.sleep(0.1)  # it is another process: there is nothing to await
            yield
        finally:
            if engine.poll() is None:
                control.stop(home)


def main() -> int:
    from marlaas.engine.daemon.main import run

    cluster.BRIDGE = "tests.slow.cluster.delayed:DelayedBridge"
    return run(Home(Path(sys.argv[1])))


if __name__ == "__main__":
    sys.exit(main())
