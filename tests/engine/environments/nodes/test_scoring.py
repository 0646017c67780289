"""Scoring workers on other nodes: as many as what waits asks for, over all nodes, and none lost with one."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from marlaas.engine.environments.protocol import EpisodeOutcome
from marlaas.engine.environments.served_version import Lease
from tests.engine.environments.conftest import World, a_spec, echoing
from tests.engine.environments.nodes.conftest import Nodes

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

WAITS = """
import os
import time
from pathlib import Path
from marlaas.plugins import Score, env

@env
async def waits(ep, marker: str = ""):
    ep.task = marker
    await ep.ask("x")

@waits.score
def score(task, transcript):
    while not os.path.exists(task):
        time.sleep(0.01)
    return Score(1.0, there=float("nodes" in Path.cwd().parts))
"""
CORES = 2
"""Of each node."""


Plays = list[asyncio.Task[EpisodeOutcome]]


async def waiting(world: World, nodes: Nodes, names: str, marker: Path, count: int) -> tuple[Lease, Plays]:
    """So many episodes, each of which waits to be scored until there is a file; this machine counts as one core."""
    world.save("waits.py", WAITS)
    world.service._budget.cores = world.service._reach._cores = 1
    world.service.use_nodes([await nodes.start(name, CORES) for name in names])
    await world.service.start()
    lease = await world.service.bind("waits")
    return lease, plays_of(world, lease, marker, count)


def plays_of(world: World, lease: Lease, marker: Path, count: int) -> Plays:
    specs = (a_spec(index=n, marker=str(marker)) for n in range(count))
    return [asyncio.ensure_future(world.service.play(lease, spec, echoing)) for spec in specs]


async def until_workers(lease: Lease, count: int) -> None:
    while lease.serving.crew.scoring < count:
        await asyncio.sleep(0.02)


async def test_workers_grow_over_all_nodes(world: World, nodes: Nodes, tmp_path: Path) -> None:
    """One core here and four there: six work at once, and soon more, since they only wait."""
    lease, plays = await waiting(world, nodes, "bc", tmp_path / "go", 12)
    await until_workers(lease, 2 + 2 * CORES)
    at = [child.node for child in lease.serving._scoring.children]
    assert len(at) >= 2 + 2 * CORES
    assert {"", "b", "c"} == set(at)
    (tmp_path / "go").touch()
    outcomes = await asyncio.gather(*plays)
    assert {outcome.status for outcome in outcomes} == {"ok"}, outcomes
    assert 0 < sum(outcome.parts["there"] for outcome in outcomes) < len(outcomes)
    lease.release()


async def test_what_a_lost_node_scored_is_scored_again(world: World, nodes: Nodes, tmp_path: Path) -> None:
    lease, plays = await waiting(world, nodes, "b", tmp_path / "go", 6)
    await until_workers(lease, 1 + CORES)
    os.kill(nodes.handles["b"].pid, signal.SIGKILL)
    await nodes.handles["b"].died.wait()
    (tmp_path / "go").touch()
    assert {outcome.status for outcome in await asyncio.gather(*plays)} == {"ok"}
    assert not any(event.kind in ("died", "quarantined") for event in world.told)
    lease.release()


async def test_the_most_that_an_author_allows_holds_over_all_nodes(world: World, nodes: Nodes, tmp_path: Path) -> None:
    limited = "# /// script\n# [tool.marlaas]\n# workers = [1, 2]\n# ///\n"
    world.save("waits.py", limited + WAITS)
    world.service.use_nodes([await nodes.start("b", 8)])
    await world.service.start()
    lease = await world.service.bind("waits")
    go = tmp_path / "go"
    plays = [
        asyncio.ensure_future(world.service.play(lease, a_spec(index=n, marker=str(go)), echoing)) for n in range(6)
    ]
    await until_workers(lease, 2)
    go.touch()
    await asyncio.gather(*plays)
    assert lease.serving.crew.scoring == 2
    lease.release()
