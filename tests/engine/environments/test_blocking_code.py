"""Environments whose code blocks, in every way we know: it costs nobody but the episode that uses up its own time."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from marlaas.engine.environments import pool
from marlaas.engine.environments.process import child, launch as pulse
from marlaas.plugins.messages import Ask, Reply, ToolCall

from .conftest import Meeting, Slow, World, a_spec, echoing, line_of

pytestmark = pytest.mark.processes

BLOCKING = """
import ctypes, re, subprocess, threading, time
from marlaas.plugins import env

asleep = threading.Barrier(8, timeout=50)

@env
async def sleeps(ep, seconds: float = 0.7):
    await ep.ask("x")
    time.sleep(seconds)
    return 1

@env
async def naps(ep):
    for _ in range(60):
        time.sleep(0.1)
        await ep.ask("x")
    return 1

@env
async def computes(ep, seconds: float = 0.05):
    await ep.ask("x")
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass
    return 1

@env
async def matches(ep):
    await ep.ask("x")
    return bool(re.match("(a+)+$", "a" * 64 + "b"))

@env
def matches_apart(ep):
    ep.ask("x")
    return bool(re.match("(a+)+$", "a" * 64 + "b"))

@env
async def rests(ep):
    "Compiled code that sleeps, and keeps the interpreter; a signal ends its sleep."
    await ep.ask("x")
    return ctypes.PyDLL(None).usleep(500_000)

@env
async def meets(ep):
    def meet():
        "Waits for seven other episodes."
        return asleep.wait() >= 0
    return (await ep.agent(tools=[meet]).act("x")).text == "done"

@env
def plain(ep):
    return ep.ask("x").text == "x"
"""

SPREAD = """
# /// script
# [tool.marlaas]
# workers = {workers}
# ///
import os, time
from marlaas.plugins import env

@env
async def reads(ep, pipe: str, first: float = 0.0):
    time.sleep(first)
    await ep.ask("x")
    with open(pipe) as file:  # until somebody writes
        return float(file.read())

@env
async def quick(ep):
    await ep.ask("x")
    return os.getpid()

@env
async def asks(ep):
    await ep.ask("first")
    return (await ep.ask("second")).text == "second"
"""


@pytest.fixture
async def blocking(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(child, "BEAT", 0.2)
    await world.serve(b=BLOCKING)
    return world


async def test_code_that_blocks_the_loop_is_no_error(blocking: World) -> None:
    """With a beat of 0.2 s, sleeping 0.7 s left three beats without an answer: this was a death once."""
    before = blocking.pids()
    with await blocking.service.bind("sleeps") as asleep, await blocking.service.bind("computes") as busy:
        outcomes = await asyncio.gather(
            blocking.service.play(asleep, a_spec(), echoing),
            *(blocking.service.play(busy, a_spec(member=member), echoing) for member in range(10)),
        )
    assert [outcome.status for outcome in outcomes] == ["ok"] * 11
    rested = await blocking.play("rests")  # two beats pass without an answer, and nothing computes
    assert (rested.status, rested.rewards) == ("ok", {"agent": 0.0}), "its system call was not interrupted"
    assert set(before) <= set(blocking.pids()), "more may have been started"


async def test_time_of_siblings_is_not_charged(blocking: World) -> None:
    """Together they compute for four times as long as each of them may, on one core."""
    with await blocking.service.bind("computes") as lease:
        spec, seen = a_spec(seconds=0.05, timeout=0.25), []
        playing = asyncio.gather(*(blocking.service.play(lease, spec, echoing) for _ in range(20)))
        while not playing.done():
            await asyncio.wait((playing,), timeout=0.1)
            seen += [child.busy for child in lease.serving.children]
    assert [outcome.status for outcome in await playing] == ["ok"] * 20
    assert 0.0 < max(seen) < 1.5, "one loop computes on one core"


async def test_its_own_time_limit_ends_it_at_its_line(blocking: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "INTERRUPTED_AFTER", 0.5)
    before = blocking.pids()
    for name, text, settings in (
        ("sleeps", "time.sleep(seconds)", {"seconds": 3600.0}),
        ("computes", "while time.thread_time() < until:", {"seconds": 3600.0}),
        ("matches", "return bool", {}),
        ("naps", "", {}),  # each nap ends in an ask, between two looks at the process
    ):
        model = Slow()
        with await blocking.service.bind("plain") as lease, await blocking.service.bind(name) as late:
            neighbour = asyncio.create_task(blocking.service.play(lease, a_spec(timeout=0.2), model))
            outcome = await blocking.service.play(late, a_spec(timeout=0.2, **settings), echoing)
            model.go.set()
            assert (await neighbour).status == "ok"
        assert outcome.status == "timeout" and outcome.failure is not None and not outcome.overloaded
        assert outcome.failure.message == "the episode took longer than 0.2 s"
        if text:
            assert outcome.failure.file == "b.py" and outcome.failure.line in (
                line_of(BLOCKING, text),
                line_of(BLOCKING, text) + 1,
            )
    assert set(before) <= set(blocking.pids()), "more may have been started"


async def test_compiled_code_in_a_thread_is_found(blocking: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "HUNG_AFTER", 0.5)
    outcome = await blocking.play("matches_apart", timeout=0.2)
    assert outcome.status == "error" and outcome.failure is not None
    assert outcome.failure.message == child.HUNG
    await blocking.until("restarted", "b")
    assert (await blocking.play("plain")).status == "ok"


async def test_plain_tools_and_many_plain_episodes_delay_nobody(blocking: World) -> None:
    """Each tool waits for all the others: on the loop, the first would wait for ever."""

    async def calling(ask: Ask) -> Reply:
        return Reply("", "tool", 0, (ToolCall("meet", {}),)) if ask.tools else Reply("done", "stop", 1)

    with await blocking.service.bind("meets") as lease:
        outcomes = await asyncio.gather(*(blocking.service.play(lease, a_spec(), calling) for _ in range(8)))
    assert [outcome.rewards for outcome in outcomes] == [{"agent": 1.0}] * 8
    together = Meeting(512)
    with await blocking.service.bind("plain") as lease:
        outcomes = await asyncio.gather(*(blocking.service.play(lease, a_spec(), together) for _ in range(512)))
    assert [outcome.status for outcome in outcomes] == ["ok"] * 512


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """What an episode waits for, until somebody writes."""
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


async def spread(world: World, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "BEAT", 0.1)
    await world.serve(s=SPREAD.format(workers=workers))


async def test_a_blocked_loop_delays_its_own_process_alone(
    world: World, pipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Siblings in the other process continue; one in the same process is delayed, but not charged."""
    await spread(world, 2, monkeypatch)
    model = Slow()
    with await world.service.bind("s/quick") as lease, await world.service.bind("s/reads") as blocking:
        while len(lease.serving.children) < 2:
            await asyncio.sleep(0.01)
        beside, elsewhere = (
            asyncio.create_task(world.service.play(lease, a_spec(timeout=0.3), model)) for _ in range(2)
        )
        reading = asyncio.create_task(world.service.play(blocking, a_spec(pipe=str(pipe)), echoing))
        kept, free = lease.serving.children
        while kept.busy < 0.5:
            await asyncio.sleep(0.01)
        model.go.set()
        others = [await world.service.play(lease, a_spec(index=n), echoing) for n in range(16)]
        assert {outcome.rewards["agent"] for outcome in (await elsewhere, *others)} == {float(free.pid)}
        assert not beside.done() and kept.busy > free.busy
        await asyncio.to_thread(pipe.write_text, "2")
        assert (await reading).rewards == {"agent": 2.0}
        outcome = await beside
    assert outcome.status == "ok" and outcome.rewards == {"agent": float(kept.pid)}


async def test_what_was_asked_does_not_wait_for_a_block(
    world: World, pipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both continue in one turn of the loop. The first asks, then the second blocks until that ask was answered."""
    await spread(world, 1, monkeypatch)
    both = Slow()

    async def model(ask: Ask) -> Reply:
        if ask.messages[-1].content == "second":
            await asyncio.to_thread(pipe.write_text, "2")
            return await echoing(ask)
        return await both(ask)

    with await world.service.bind("s/asks") as lease, await world.service.bind("s/reads") as blocking:
        asking = asyncio.create_task(world.service.play(lease, a_spec(), model))
        reads = a_spec(pipe=str(pipe), first=1.2)  # the process learns that its loop is kept
        reading = asyncio.create_task(world.service.play(blocking, reads, model))
        await both.until(2)
        both.go.set()
        assert (await asking).rewards == {"agent": 1.0} and (await reading).rewards == {"agent": 2.0}


async def test_code_that_holds_the_loop_gets_another_process(blocking: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with one core, at default settings. What computes there does too, unless the machine is busy."""
    monkeypatch.setattr(pool, "LOOK", 0.1)
    monkeypatch.setattr(pool, "GROW_AFTER", 0.3)
    with await blocking.service.bind("sleeps") as lease:
        lease.serving._playing._budget.cores = 1
        spec = a_spec(seconds=0.1)
        episodes = {asyncio.create_task(blocking.service.play(lease, spec, echoing)) for _ in range(16)}
        while len(lease.serving.children) < 2:
            ended, episodes = await asyncio.wait(episodes, return_when=asyncio.FIRST_COMPLETED)
            assert {task.result().status for task in ended} == {"ok"}
            episodes.add(asyncio.create_task(blocking.service.play(lease, spec, echoing)))
        assert {outcome.status for outcome in await asyncio.gather(*episodes)} == {"ok"}
        assert len(lease.serving.children) == 2, "one for each core, and one more"
