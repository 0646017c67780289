"""A version in several processes: who plays where, who waits, what a death takes along, and how they all end."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from marlaas.engine.environments import pool, served_version
from marlaas.engine.environments.health import MOST_AFTER_SUCCESS
from marlaas.engine.environments.protocol import EpisodeOutcome
from marlaas.engine.environments.served_version import Lease
from marlaas.plugins.messages import Ask, Reply

from ..conftest import World, a_spec, echoing

pytestmark = pytest.mark.processes

PLACE = """
# /// script
# [tool.marlaas]
# workers = {workers}
# episodes = {episodes}
# ///
import os
from marlaas.plugins import env

print("imported by", os.getpid())

@env
async def place(ep):
    await ep.ask("x")
    return os.getpid()

@env(name="kept")
class Kept:
    def setup(self):
        self.mine = os.getpid()

    async def play(self, ep):
        await ep.ask("x")
        return self.mine == os.getpid()
"""


class Model:
    """Answers when it is told to, and counts who asks."""

    def __init__(self) -> None:
        self.asked, self.go, self.came = 0, asyncio.Event(), asyncio.Event()

    async def __call__(self, ask: Ask) -> Reply:
        self.asked += 1
        self.came.set()
        await self.go.wait()
        return await echoing(ask)

    async def until(self, count: int) -> None:
        while self.asked < count:
            self.came.clear()
            await self.came.wait()


async def bound(world: World, workers: str, episodes: int, name: str = "place") -> Lease:
    world.save("place.py", PLACE.format(workers=workers, episodes=episodes))
    await world.service.start()
    return await world.service.bind(f"place/{name}")


def begun(world: World, lease: Lease, model: Model, count: int) -> list[asyncio.Task[EpisodeOutcome]]:
    return [asyncio.create_task(world.service.play(lease, a_spec(index=n), model, counts=True)) for n in range(count)]


async def until_processes(lease: Lease, count: int) -> None:
    while len(lease.serving.pids) != count:
        await asyncio.sleep(0.01)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "LOOK", 0.05)


@pytest.mark.parametrize("name", ["place", "kept"])
async def test_members_of_a_group_play_in_several_processes(world: World, quick: None, name: str) -> None:
    lease, model = await bound(world, "2", 64, name), Model()
    await until_processes(lease, 2)
    assert set(lease.serving.pids) == set(world.pids()) == {pid for _, pid in world.service.processes()}
    episodes = begun(world, lease, model, 8)
    await model.until(8)
    model.go.set()
    outcomes = await asyncio.gather(*episodes)
    assert [outcome.status for outcome in outcomes] == ["ok"] * 8
    if name == "place":
        played = [outcome.rewards["agent"] for outcome in outcomes]
        assert {played.count(pid) for pid in lease.serving.pids} == {4}
        log = (world.scratch / "logs" / "place.log").read_text()
        assert all(f"imported by {pid}" in log for pid in lease.serving.pids), "one log for all of them"
    lease.release()


async def test_waiting_starts_processes_and_rest_ends_them(
    world: World, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marlaas.engine.environments.pool.GROW_AFTER", 0.0)
    lease, model = await bound(world, "[1, 3]", 2), Model()
    lease.serving._playing._budget.cores = 8
    episodes = begun(world, lease, model, 6)
    await model.until(6)
    assert len(lease.serving.pids) == 3
    model.go.set()
    outcomes = await asyncio.gather(*episodes)
    assert {outcome.rewards["agent"] for outcome in outcomes} == set(map(float, lease.serving.pids))
    monkeypatch.setattr("marlaas.engine.environments.pool.REST", 0.0)
    await until_processes(lease, 1)
    await lease.serving.settle()
    assert len(world.pids()) == 1
    assert (await world.service.play(lease, a_spec(), echoing)).status == "ok"
    lease.release()


async def test_a_process_that_dies_takes_its_own_episodes(world: World, quick: None) -> None:
    lease, model = await bound(world, "2", 64), Model()
    await until_processes(lease, 2)
    episodes = begun(world, lease, model, 8)
    await model.until(8)
    dying, living = lease.serving.pids
    os.kill(dying, signal.SIGKILL)
    died = await world.until("died", "place")
    assert died.failure is not None and "SIGKILL" in died.failure.message
    await until_processes(lease, 2)
    assert living in lease.serving.pids and dying not in lease.serving.pids
    model.go.set()
    outcomes = await asyncio.gather(*episodes)
    assert [outcome.status for outcome in outcomes].count("error") == 4
    assert {outcome.rewards["agent"] for outcome in outcomes if outcome.status == "ok"} == {float(living)}
    assert world.service.resolve("place/place").state == "ready"
    lease.release()


async def test_a_replaced_version_ends_with_all_its_processes(world: World, quick: None) -> None:
    lease, model = await bound(world, "2", 64), Model()
    await until_processes(lease, 2)
    old = set(lease.serving.pids)
    episodes = begun(world, lease, model, 4)
    await model.until(4)
    await world.until("loaded", "place")
    world.save("place.py", PLACE.format(workers="1", episodes=64) + "# edited\n")
    await world.until("loaded", "place")
    assert old <= set(world.pids()), "its groups go on"
    model.go.set()
    assert [outcome.status for outcome in await asyncio.gather(*episodes)] == ["ok"] * 4
    lease.release()
    await lease.serving.settle()
    assert not old & set(world.pids()) and len(world.pids()) == 1


async def test_a_grace_that_ends_cuts_off_those_who_wait(
    world: World, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_version, "SHORTEST", 0.0)
    lease, model = await bound(world, "2", 1), Model()
    await until_processes(lease, 2)
    episodes = begun(world, lease, model, 4)
    await model.until(2)
    await world.until("loaded", "place")
    world.save("place.py", PLACE.format(workers="1", episodes=64) + "# edited\n")
    outcomes = await asyncio.gather(*episodes)
    assert {outcome.status for outcome in outcomes} == {"cancelled"} and lease.cut
    lease.release()


async def test_stopping_ends_what_is_being_started(world: World, quick: None) -> None:
    lease = await bound(world, "3", 1)
    lease.release()
    await world.service.stop()
    assert world.pids() == []


LEAKING = """
# /// script
# [tool.marlaas]
# memory_mb = 256
# ///
import os
from marlaas.plugins import env

kept = []

@env
async def leaking(ep):
    await ep.ask("x")
    ep.log(pid=float(os.getpid()))
    kept.append(bytearray(8 << 20))
    return 1.0
"""


async def test_a_process_in_which_memory_piled_up_is_replaced(world: World) -> None:
    """One episode after the other: each failure is followed by success elsewhere, and nothing rests."""
    world.save("leaking.py", LEAKING)
    await world.service.start()
    with await world.service.bind("leaking") as lease:
        outcomes = [await world.service.play(lease, a_spec(index=n), echoing, counts=True) for n in range(100)]
    failed = [number for number, outcome in enumerate(outcomes) if outcome.status != "ok"]
    assert failed, "a process has room for some thirty of them"
    assert all(outcomes[number + 1].status == "ok" for number in failed if number < 99)
    assert len({outcome.metrics["pid"] for outcome in outcomes if outcome.status == "ok"}) >= len(failed)
    assert not {event.kind for event in world.told} & {"quarantined", "died"}


async def test_what_full_memory_ends_at_once_is_no_reason_to_rest(world: World) -> None:
    """All that is under way in a full process fails together, on more instances than an environment may fail on."""
    world.save("leaking.py", LEAKING)
    await world.service.start()
    with await world.service.bind("leaking") as lease:
        plays = (world.service.play(lease, a_spec(index=n), echoing, counts=True) for n in range(100))
        outcomes = await asyncio.gather(*plays)
        failed = sum(outcome.status == "error" for outcome in outcomes)
        assert failed > MOST_AFTER_SUCCESS and lease.rest is None
        assert (await world.service.play(lease, a_spec(), echoing, counts=True)).status == "ok"
    assert not {event.kind for event in world.told} & {"quarantined", "died"}
