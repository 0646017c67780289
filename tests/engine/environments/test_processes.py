"""Processes that die, flood, break the protocol or grow: what it costs, and what takes their place."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from marlaas.engine.environments import pool, served_version
from marlaas.engine.environments.health import MOST_AFTER_SUCCESS
from marlaas.engine.environments.process import child
from marlaas.engine.environments.process.child import Child
from marlaas.engine.environments.protocol import EpisodeOutcome
from marlaas.engine.environments.served_version import Lease
from marlaas.engine.errors import EnvironmentFailure
from marlaas.engine.fairness.line import Ledger
from marlaas.engine.models.find import find_base
from marlaas.engine.rollout.conversation import SamplingParameters
from marlaas.engine.rollout.episodes import Rollout
from marlaas.engine.rollout.renderer import Renderer
from marlaas.engine.samplers.vocabulary import Vocabulary
from marlaas.plugins.host.channel import Record
from marlaas.plugins.messages import MOST_ASKS, Ask, Reply
from tests.engine.rollout.endpoints import alike, endpoint
from tests.engine.rollout.fake import FakeSampler, FakeVersion

from .conftest import ECHO, Slow, World, a_spec, echoing

pytestmark = pytest.mark.processes

BAD = """
import os
from marlaas.plugins import env

@env
async def exits(ep):
    await ep.ask("x")
    os._exit(3)

@env
async def well(ep):
    await ep.ask("x")
    return 1
"""


@pytest.fixture
async def bad(world: World) -> World:
    await world.serve(bad=BAD, echo=ECHO)
    return world


async def test_what_does_not_stop_is_killed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "BEAT", 0.2)
    await world.serve(
        stuck="""
        from marlaas.plugins import env

        @env
        async def stuck(ep, hard: bool = False):
            await ep.ask("x")
            while hard:
                try:
                    while True:
                        pass
                except BaseException:
                    pass
            return 1
        """
    )
    outcome = await world.play("stuck", hard=True, timeout=0.1)
    assert outcome.status == "error" and outcome.failure is not None and "did not stop" in outcome.failure.message
    await world.until("restarted", "stuck")
    assert (await world.play("stuck")).status == "ok"


async def test_a_version_that_keeps_dying_rests(bad: World) -> None:
    for _ in range(3):
        outcome = await bad.play("exits")
        assert outcome.status == "error"
        assert outcome.failure is not None and "by itself with code 3" in outcome.failure.message
    event = await bad.until("quarantined", "bad")
    assert event.failure is not None and "died 3 times" in event.failure.message
    assert bad.service.resolve("well").state == "broken"
    with pytest.raises(EnvironmentFailure, match="died 3 times"):
        await bad.service.bind("well")
    assert (await bad.play("echo")).status == "ok", "the neighbour is not concerned"
    await bad.edit("bad", BAD + "# mended\n")
    assert (await bad.play("well")).status == "ok"


FORGED = (
    b'{"op":"end","episode":1,"status":"ok","rewards":{"agent":NaN}}',
    b'{"op":"ask","id":1,"episode":99,"agent":"a","messages":[{"role":"user","content":""}]}',
    b'{"op":"hello","environments":[]}',
    b'{"op":"ranked","episode":1,"rewards":[{"agent":1}]}',
    b'{"op":"rm -rf"}',
    b"[]",
    b"not json",
    b"[" * 200_000,
)

FORGER = """
import os, struct, sys
from marlaas.plugins import env

@env
async def forger(ep):
    await ep.ask("x")
    body = {start!r} * {times}
    os.write(int(sys.orig_argv[4]), struct.pack("<I", len(body)) + body)
    await ep.ask("never answered")
"""


async def test_processes_that_break_the_protocol_are_killed(world: World) -> None:
    for number, sent in enumerate(FORGED):
        repeated = len(set(sent)) == 1
        world.save(
            f"f{number}.py", FORGER.format(start=sent[:1] if repeated else sent, times=len(sent) if repeated else 1)
        )
    await world.serve(echo=ECHO)
    outcomes = await asyncio.gather(*(world.play(f"f{number}/forger") for number in range(len(FORGED))))
    for number, outcome in enumerate(outcomes):
        assert outcome.status == "error" and outcome.failure is not None, FORGED[number]
    assert (await world.play("echo")).status == "ok"
    died = {event.plugin: event.failure for event in world.told if event.kind == "died"}
    assert died == {f"f{number}": outcome.failure for number, outcome in enumerate(outcomes)}


async def test_a_death_on_import_is_retried_then_refused(world: World) -> None:
    world.save("exits.py", ECHO + "\nimport os\nos._exit(3)\n")
    marker = world.folder.parent / "tried"
    await world.serve(
        once=f"import os\nif not os.path.exists({str(marker)!r}):\n"
        f"    open({str(marker)!r}, 'w').close()\n    os._exit(3)\n" + ECHO
    )
    failure = world.service.resolve("exits").failure
    assert failure is not None and "died 3 times" in failure.message and "code 3" in failure.message
    assert (await world.play("once/echo")).status == "ok"


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


async def bound(world: World, workers: str, episodes: int, name: str = "place") -> Lease:
    await world.serve(place=PLACE.format(workers=workers, episodes=episodes))
    return await world.service.bind(f"place/{name}")


def begun(world: World, lease: Lease, model: Slow, count: int) -> list[asyncio.Task[EpisodeOutcome]]:
    return [asyncio.create_task(world.service.play(lease, a_spec(index=n), model, counts=True)) for n in range(count)]


async def until_processes(lease: Lease, count: int) -> None:
    while len(lease.serving.pids) != count:
        await asyncio.sleep(0.01)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "LOOK", 0.05)


async def test_a_group_in_several_processes_loses_one(world: World, quick: None) -> None:
    lease, model = await bound(world, "2", 64), Slow()
    await until_processes(lease, 2)
    assert set(lease.serving.pids) == set(world.pids()) == {pid for _, pid in world.service.processes()}
    episodes = begun(world, lease, model, 8)
    await model.until(8)
    model.go.set()
    played = [outcome.rewards["agent"] for outcome in await asyncio.gather(*episodes)]
    assert {played.count(pid) for pid in lease.serving.pids} == {4}
    log = (world.scratch / "logs" / "place.log").read_text()
    assert all(f"imported by {pid}" in log for pid in lease.serving.pids), "one log for all of them"
    outcomes = await asyncio.gather(*(world.play("kept") for _ in range(8)))
    assert [outcome.rewards for outcome in outcomes] == [{"agent": 1.0}] * 8, "each process has its own instance"

    model = Slow()
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


async def test_waiting_starts_processes_and_rest_ends_them(
    world: World, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marlaas.engine.environments.pool.GROW_AFTER", 0.0)
    lease, model = await bound(world, "[1, 3]", 2), Slow()
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


async def test_a_grace_that_ends_cuts_off_those_who_wait(
    world: World, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_version, "SHORTEST", 0.0)
    lease, model = await bound(world, "2", 1), Slow()
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
    """One episode after the other: each failure is followed by success elsewhere, and nothing rests. At the same time:
    all episodes in a full process fail together, on more instances than an environment may fail on."""
    await world.serve(leaking=LEAKING)
    with await world.service.bind("leaking") as lease:
        outcomes = [await world.service.play(lease, a_spec(index=n), echoing, counts=True) for n in range(100)]
        failed = [number for number, outcome in enumerate(outcomes) if outcome.status != "ok"]
        assert failed, "a process has room for some thirty of them"
        assert all(outcomes[number + 1].status == "ok" for number in failed if number < 99)
        assert len({outcome.metrics["pid"] for outcome in outcomes if outcome.status == "ok"}) >= len(failed)
        plays = (world.service.play(lease, a_spec(index=n), echoing, counts=True) for n in range(100, 200))
        outcomes = await asyncio.gather(*plays)
        assert sum(outcome.status == "error" for outcome in outcomes) > MOST_AFTER_SUCCESS and lease.rest is None
        assert (await world.service.play(lease, a_spec(), echoing, counts=True)).status == "ok"
    assert not {event.kind for event in world.told} & {"quarantined", "died"}


FLOODS = """
import asyncio, gc
from marlaas.plugins import env
from marlaas.plugins.host.process import PluginHost

async def storm(host, **fields):
    "Sends asks behind the back of the host that counts them."
    record = {"op": "ask", "id": 1, "agent": "a", "messages": [{"role": "user", "content": "x" * 100}], **fields}
    while True:
        for _ in range(100):
            host._channel.send(record)
        await asyncio.sleep(0)

@env
async def floods(ep, way: str):
    host = next(one for one in gc.get_objects() if isinstance(one, PluginHost))
    number = next(iter(host._runs))
    try:
        await ep.ask("x")
    except asyncio.CancelledError:
        pass
    await storm(host, episode=1 << 40 if way == "strange" else number)
"""


class Frames:
    """Counts what the engine's loop is made to handle."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.handled = 0
        receive = Child.receive

        def counted(child: Child, record: Record) -> None:
            if child.dead is None:
                self.handled += 1
            receive(child, record)

        monkeypatch.setattr(Child, "receive", counted)


async def test_asking_on_after_a_cancel_ends_the_worker(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.serve(floods=FLOODS, echo=ECHO)
    frames = Frames(monkeypatch)
    with await world.service.bind("floods") as lease:
        for time in range(3):
            model = Slow()
            episode = asyncio.create_task(world.service.play(lease, a_spec(way="deaf"), model))
            await model.until(1)
            episode.cancel()
            await asyncio.gather(episode, return_exceptions=True)
            told = (await world.until("died", "floods")) if time < 2 else await world.until("quarantined", "floods")
            assert told.failure is not None
            assert f"more than {MOST_ASKS} asks of episode" in told.failure.message
    assert told.failure is not None and "rests" in told.failure.message
    with pytest.raises(EnvironmentFailure, match=r"floods.*: .*after that was cancelled"):
        await world.service.bind("floods")
    # Of each process: as many asks as may wait at once and one more, the ask before, and pongs. Without a bound the
    # loop handles a hundred thousand in a second.
    assert frames.handled <= 3 * (MOST_ASKS + 1 + 20)
    assert (await world.play("echo")).status == "ok", "nobody else is concerned"


@pytest.mark.parametrize("way", ["strange", "greedy"])
async def test_asks_that_it_may_not_send_end_it_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    await world.serve(floods=FLOODS)
    frames = Frames(monkeypatch)
    first = True

    async def once(ask: Ask) -> Reply:
        nonlocal first
        if first:
            first = False
            return await echoing(ask)
        return await asyncio.Future()

    outcome = await world.play("floods", once, way=way)
    assert outcome.failure is not None and "out of turn" in outcome.failure.message
    assert frames.handled <= MOST_ASKS + 1 + 20


NESTED = """
from marlaas.plugins import env

DEEP = []
for _ in range(600):
    DEEP = [DEEP]

@env
async def nested(ep, layout: list = DEEP):
    await ep.ask("x")
"""


async def test_a_declaration_nested_without_end_is_refused_in_words(world: World) -> None:
    await world.serve(nested=NESTED, echo=ECHO)
    info = world.service.resolve("nested")
    assert info.state == "broken" and info.failure is not None
    assert "'layout' is nested more than 32 deep" in info.failure.message and info.failure.file == "nested.py"
    assert world.service.resolve("echo").state == "ready"


async def test_what_an_author_nests_too_deeply_fails_where_it_is_said(world: World) -> None:
    """Before it meets the engine: that would end the process and all its episodes."""
    await world.serve(
        deep="""
        from marlaas.plugins import Message, ToolCall, env

        @env
        async def deep(ep, size: int):
            await ep.ask("x")
            value = []
            for _ in range(size):
                value = [value]
            call = ToolCall("f", {"x": value, "y": list(range(40_000 if size == 20 else 1))})
            await ep.ask([Message("assistant", "", tool_calls=(call,))])
            return 1
        """
    )
    for size, says in ((40, "nested more than 32 deep"), (20, "more than 32768 entries")):
        outcome = await world.play("deep", size=size)
        assert outcome.failure is not None and says in outcome.failure.message
        assert (outcome.failure.file, outcome.failure.line) == ("deep.py", 11)


SHOUTS = """
import asyncio
from marlaas.plugins import env

@env
async def shouts(ep):
    await asyncio.gather(*(ep.agent(f"a{number}").ask(f"{number} " + "x" * 1_000_000) for number in range(20)))
    return 1
"""


async def test_prompts_of_megabytes_are_never_rendered(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the twenty would take the loop a second: what cannot fit is known by its characters."""
    await world.serve(shouts=SHOUTS)
    renderer, rendered = Renderer(find_base("tiny")), []
    monkeypatch.setattr(Vocabulary, "encode", lambda *given: rendered.append(given))
    sampler = FakeSampler(sequences=2, context=400, versions={"v1": FakeVersion("sum")})
    sampling = SamplingParameters("v1", 1, temperature=1.0, max_tokens=3, max_episode_tokens=30, seed=7)
    roles = alike(sampling, endpoint(sampler, 2, 400))
    with await world.service.bind("shouts") as lease:
        played = await Rollout(renderer, Ledger()).run_episode(
            lambda spec, answer: world.service.play(lease, spec, answer), a_spec(), roles, "e"
        )
    failure = played.episode.failure
    assert failure is not None and "a conversation has room for 400" in failure.message
    assert rendered == [] and sampler.ledger == []
