"""Plugins' processes on other nodes: they play and score as here, and a node that is lost costs its episodes alone."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from marlaas.engine.environments import pool
from marlaas.engine.environments.nodes.remote import RemoteNode
from marlaas.engine.environments.protocol import EpisodeOutcome
from marlaas.engine.environments.served_version import Lease
from marlaas.plugins.data import Source
from tests.engine.environments.conftest import World, a_spec, echoing
from tests.engine.environments.nodes.conftest import Nodes
from tests.engine.environments.process.test_several_processes import Model, begun

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

WHERE = """
# /// script
# [tool.marlaas]
# workers = [1, 4]
# episodes = 2
# ///
import os
from pathlib import Path
from marlaas.plugins import env

print("imported in", Path.cwd())

@env
async def where(ep, fail: bool = False):
    await ep.ask("x")
    if fail:
        raise ValueError("as it was told to")
    return float("hosted" in Path(__file__).parts)

@env
async def blocks(ep):
    await ep.ask("x")
    while True:
        pass

@env(name="writes")
async def writes(ep):
    reply = await ep.ask("y" * 3_000_000)
    return len(reply.text)
"""


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes are started after a second in which something waits."""
    monkeypatch.setattr(pool, "LOOK", 0.05)


async def serving(world: World, nodes: Nodes, name: str = "where") -> tuple[Lease, RemoteNode]:
    """A lease of the plugin, in a service with a node that has many more cores than this machine."""
    world.save("places.py", WHERE)
    node = await nodes.start("b", 64)
    world.service.use_nodes([node])
    await world.service.start()
    return await world.service.bind(f"places/{name}"), node


async def spread(world: World, lease: Lease, count: int = 6) -> tuple[Model, list[asyncio.Task[EpisodeOutcome]]]:
    """Episodes under way in several processes, some of them on the node."""
    model = Model()
    episodes = begun(world, lease, model, count)
    await model.until(count)
    assert any(child.node == "b" for child in lease.serving.children)
    return model, episodes


async def test_episodes_go_to_a_node_where_this_machine_has_no_place(world: World, nodes: Nodes) -> None:
    lease, _ = await serving(world, nodes)
    model, episodes = await spread(world, lease)
    model.go.set()
    outcomes = await asyncio.gather(*episodes)
    assert {outcome.status for outcome in outcomes} == {"ok"}, outcomes
    rewards = [outcome.rewards["agent"] for outcome in outcomes]
    assert 0 < sum(rewards) < len(rewards), "both played"
    lease.release()


async def test_what_is_printed_there_is_in_the_log_here(world: World, nodes: Nodes) -> None:
    lease, _ = await serving(world, nodes)
    model, episodes = await spread(world, lease)
    model.go.set()
    await asyncio.gather(*episodes)
    log = world.scratch / "logs" / "places.log"
    while f"imported in {nodes.folder / 'b'}" not in log.read_text():
        await asyncio.sleep(0.01)
    lease.release()


async def test_only_processes_of_this_machine_are_counted_as_ours(world: World, nodes: Nodes) -> None:
    lease, _ = await serving(world, nodes)
    model, episodes = await spread(world, lease)
    assert lease.serving.crew.playing == len(lease.serving.children) > len(lease.serving.pids)
    assert {pid for _, pid in world.service.processes()} == set(lease.serving.pids)
    model.go.set()
    await asyncio.gather(*episodes)
    lease.release()


async def test_a_lost_node_costs_its_episodes_and_blames_nobody(world: World, nodes: Nodes) -> None:
    lease, _ = await serving(world, nodes)
    model, episodes = await spread(world, lease)
    os.kill(nodes.handles["b"].pid, signal.SIGKILL)
    await nodes.handles["b"].died.wait()
    model.go.set()
    outcomes = await asyncio.gather(*episodes)
    lost = [outcome for outcome in outcomes if outcome.status == "error"]
    assert lost and len(lost) < len(outcomes)
    for outcome in lost:
        assert outcome.died and outcome.overloaded
        assert outcome.failure is not None and outcome.failure.message == "its node b was lost"
    assert lease.serving.health.deaths == 0
    assert all(not child.node for child in lease.serving.children)
    assert not any(event.kind in ("died", "quarantined") for event in world.told)
    lease.release()


async def test_a_process_that_dies_there_is_a_death(world: World, nodes: Nodes) -> None:
    lease, _ = await serving(world, nodes)
    model, episodes = await spread(world, lease)
    pid = next(child.pid for child in lease.serving.children if child.node)
    os.kill(pid, signal.SIGKILL)
    model.go.set()
    outcomes = await asyncio.gather(*episodes)
    (failure,) = {outcome.failure for outcome in outcomes if outcome.status == "error"}
    assert failure is not None and failure.message == "its process was ended by SIGKILL"
    assert lease.serving.health.deaths == 1
    lease.release()


async def test_a_drained_node_plays_to_the_end_and_gets_nothing(world: World, nodes: Nodes) -> None:
    lease, _ = await serving(world, nodes)
    model, episodes = await spread(world, lease)
    world.service.use_nodes([])
    model.go.set()
    assert {outcome.status for outcome in await asyncio.gather(*episodes)} == {"ok"}
    while any(child.node for child in lease.serving.children):
        await asyncio.gather(*(world.service.play(lease, a_spec(index=n), echoing) for n in range(2)))
        await asyncio.sleep(0.01)
    lease.release()


async def test_an_error_there_has_its_line(world: World, nodes: Nodes) -> None:
    lease, _ = await serving(world, nodes)
    model, episodes = await spread(world, lease)
    failing = [
        asyncio.create_task(world.service.play(lease, a_spec(index=n, fail=True), echoing)) for n in range(20, 26)
    ]
    model.go.set()
    await asyncio.gather(*episodes)
    for outcome in await asyncio.gather(*failing):
        assert outcome.failure is not None
        assert (outcome.failure.file, outcome.failure.line) == ("places.py", 17)
    lease.release()


async def test_long_messages_go_both_ways(world: World, nodes: Nodes) -> None:
    lease, _ = await serving(world, nodes, "writes")
    outcomes = await asyncio.gather(*(world.service.play(lease, a_spec(index=n), echoing) for n in range(6)))
    assert {outcome.rewards["agent"] for outcome in outcomes} == {3_000_000.0}
    lease.release()


ROWS = """
# /// script
# [tool.marlaas]
# workers = [1, 4]
# episodes = 2
# ///
from pathlib import Path
from marlaas.plugins import env

@env(data=lambda split: [{"a": number} for number in range(40)])
async def rows(ep, task):
    await ep.ask(str(task["a"]))
    return float(task["a"]) + 0.5 * ("hosted" in Path(__file__).parts)
"""


async def named_rows(world: World, nodes: Nodes, path: Path) -> Lease:
    """A lease over rows of a file, and a node that has many more cores than this machine."""
    world.save("rows.py", ROWS)
    path.write_text("".join(f'{{"a": {number}}}\n' for number in range(100, 140)))
    world.service.use_nodes([await nodes.start("b", 64)])
    await world.service.start()
    return await world.service.bind("rows", data=Source(path).record())


async def test_rows_that_a_task_names_go_to_a_node(world: World, nodes: Nodes, tmp_path: Path) -> None:
    lease = await named_rows(world, nodes, tmp_path / "mine.jsonl")
    model, episodes = await spread(world, lease)
    model.go.set()
    outcomes = await asyncio.gather(*episodes)
    assert [outcome.failure for outcome in outcomes if outcome.failure] == []
    rewards = [outcome.rewards["agent"] for outcome in outcomes]
    assert all(reward >= 100 for reward in rewards) and any(reward % 1 for reward in rewards), "some played there"
    (sent,) = (nodes.folder / "b" / "hosted" / "rows").iterdir()
    assert sent.read_text() == (tmp_path / "mine.jsonl").read_text()
    alone = await asyncio.gather(*(world.service.play(lease, a_spec(index=n), echoing) for n in range(6)))
    assert [int(outcome.rewards["agent"]) for outcome in alone] == [int(reward) for reward in rewards]
    lease.release()


async def test_rows_that_are_too_large_stay_here(
    world: World, nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marlaas.engine.environments.nodes.host.MOST", 100)
    lease = await named_rows(world, nodes, tmp_path / "mine.jsonl")
    model = Model()
    episodes = begun(world, lease, model, 6)
    event = await world.until("elsewhere", "rows")
    assert event.failure is not None
    assert event.failure.message.startswith("its processes stay off b: its rows ")
    assert event.failure.message.endswith("mine.jsonl stay here: they are larger than 1e-07 GB")
    model.go.set()
    outcomes = await asyncio.gather(*episodes)
    assert {outcome.status for outcome in outcomes} == {"ok"}
    assert not any(outcome.rewards["agent"] % 1 for outcome in outcomes), "all played here"
    assert sum(told.kind == "elsewhere" for told in world.told) == 1
    lease.release()


async def test_what_does_not_work_there_stays_here(world: World, nodes: Nodes) -> None:
    """A plugin that reads a file of this machine, which the node has not; people are told once."""
    secret = world.scratch.parent / "only-here"
    secret.write_text("x")
    text = WHERE.replace('await ep.ask("x")', 'assert "nodes" not in str(Path.cwd()); await ep.ask("x")')
    world.save("places.py", text)
    world.service.use_nodes([await nodes.start("b", 64)])
    await world.service.start()
    lease = await world.service.bind("places/where")
    model = Model()
    episodes = begun(world, lease, model, 6)
    event = await world.until("elsewhere", "places")
    assert event.failure is not None
    assert event.failure.message.startswith("its processes stay off b: places/where ended") or "b:" in str(event)
    await model.until(6)
    model.go.set()
    assert {outcome.status for outcome in await asyncio.gather(*episodes)} == {"ok"}
    assert sum(told.kind == "elsewhere" for told in world.told) == 1
    lease.release()
