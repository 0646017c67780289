"""Plugins' processes on nodes of a real cluster: they play and score there, and a node that ends blames nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from marlaas.engine.environments.nodes.remote import RemoteNode
from marlaas.engine.home.paths import Home
from marlaas.engine.machine.cluster.node_host import NodeLauncher, named
from marlaas.engine.machine.supervisor import FACTORY
from marlaas.engine.machine.workers.handle import WorkerHandle
from marlaas.engine.models.find import load_base
from tests.engine.environments.conftest import World, a_spec, echoing
from tests.engine.environments.test_nodes import WAITS, plays_of
from tools.ray_nodes import RayNodes

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]
CORES = 2


@pytest_asyncio.fixture(loop_scope="module")
async def spread(ray_nodes: RayNodes, bridge: WorkerHandle, tmp_path: Path) -> AsyncIterator[World]:
    """A service on this machine, which counts as one core, with the nodes ``ada`` and ``grace``."""
    home = Home(tmp_path / "home").create()
    resolved = partial(named, base=load_base("tiny"), home=home)
    handles, nodes = [], []
    for name in ("ada", "grace"):
        launcher = NodeLauncher(bridge, ray_nodes.ids[name], resolved)
        kwargs = {"scratch": str(home.scratch)}
        handles.append(await launcher.start(f"environments at {name}", FACTORY, kwargs, log_path=tmp_path / name))
        nodes.append(RemoteNode(ray_nodes.ids[name], name, CORES, handles[-1], 0.001))
    world = World(tmp_path / "plugins", tmp_path / "scratch")
    world.folder.mkdir()
    world.save("waits.py", WAITS)
    world.service._budget.cores = world.service._reach._cores = 1
    world.service.use_nodes(nodes)
    await world.service.start()
    yield world
    await world.service.stop()
    await asyncio.gather(*(handle.stop() for handle in handles))


async def test_scores_come_from_all_nodes_and_survive_one(spread: World, ray_nodes: RayNodes, tmp_path: Path) -> None:
    lease = await spread.service.bind("waits")
    go = tmp_path / "go"
    plays = plays_of(spread, lease, go, 12)
    while lease.serving.crew.scoring < 2 + 2 * CORES:
        await asyncio.sleep(0.05)
    at = [child.node for child in lease.serving._scoring.children]
    assert set(at) == {"", ray_nodes.ids["ada"], ray_nodes.ids["grace"]}
    ray_nodes.remove("grace")
    gone = ray_nodes.ids["grace"]
    while any(child.node == gone for child in lease.serving._scoring.children):
        await asyncio.sleep(0.05)
    go.touch()
    outcomes = await asyncio.gather(*plays)
    assert [outcome.failure for outcome in outcomes if outcome.failure] == []
    assert not any(event.kind in ("died", "quarantined") for event in spread.told)
    again = await spread.service.play(lease, a_spec(marker=str(go)), echoing)
    assert again.status == "ok"
    lease.release()
    ray_nodes.ids["grace"] = ray_nodes.add("grace")
