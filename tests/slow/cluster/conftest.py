"""One cluster of three nodes for all tests of a file; those that end nodes bring them back."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest
import pytest_asyncio

from marlaas.engine.machine.cluster.bridge import RECONNECT
from marlaas.engine.machine.cluster.cluster import Folder
from marlaas.engine.machine.cluster.node import own_versions
from marlaas.engine.machine.workers.handle import LocalLauncher, WorkerHandle
from marlaas.engine.models.find import load_base
from tests.ray_nodes import ROOT, VARIABLES, RayNodes

BRIDGE = "marlaas.engine.machine.cluster.bridge:Bridge"


@pytest.fixture(scope="module")
def ray_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNodes]:
    """The head, and the nodes ``ada`` and ``grace``."""
    nodes = RayNodes(tmp_path_factory.mktemp("nodes"))
    nodes.ids = {name: nodes.add(name) for name in ("ada", "grace")}
    yield nodes
    nodes.close()


def variables(nodes: RayNodes) -> Mapping[str, str]:
    """The environment of a bridge to these nodes."""
    return VARIABLES | {
        "PYTHONPATH": str(ROOT),
        "MARLAAS_HOME": str(nodes.home("head")),
        "RAY_gcs_rpc_server_reconnect_timeout_s": RECONNECT,
        "PATH": os.environ["PATH"],
    }


async def open_bridge(nodes: RayNodes, log: Path) -> WorkerHandle:
    """A bridge to these nodes."""
    base = load_base("tiny")
    model = Folder("model", str(base.path), base.fingerprint)
    kwargs = {"address": nodes.address, "versions": own_versions(), "model": model}
    return await LocalLauncher().start("bridge", BRIDGE, kwargs, log_path=log, environment=variables(nodes))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bridge(ray_nodes: RayNodes) -> AsyncIterator[WorkerHandle]:
    """One for the tests of a file."""
    handle = await open_bridge(ray_nodes, ray_nodes.folder / "bridge.log")
    yield handle
    await handle.stop()
