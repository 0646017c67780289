"""Environments whose code blocks, in every way we know: it costs nobody but the episode that uses up its own time."""

from __future__ import annotations

import asyncio

import pytest

from marlaas.engine.environments.process import child, pulse
from marlaas.plugins.messages import Ask, Reply, ToolCall

from .conftest import Slow, World, a_spec, echoing

pytestmark = pytest.mark.processes

BLOCKING = """
import re, subprocess, threading, time
from marlaas.plugins import env

asleep = threading.Barrier(8, timeout=50)

@env
async def sleeps(ep, seconds: float = 1.2):
    await ep.ask("x")
    time.sleep(seconds)
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
async def meets(ep):
    def meet():
        "Waits for seven other episodes."
        return asleep.wait() >= 0
    return (await ep.agent(tools=[meet]).act("x")).text == "done"

@env
def plain(ep):
    return ep.ask("x").text == "x"
"""


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(BLOCKING.splitlines(), 1) if text in line)


@pytest.fixture
async def blocking(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(child, "BEAT", 0.2)
    world.save("b.py", BLOCKING)
    await world.service.start()
    return world


async def test_code_that_blocks_the_loop_is_no_error(blocking: World) -> None:
    """With a beat of 0.2 s, sleeping 1.2 s kept six beats from being answered, which was a death."""
    before = blocking.pids()
    with await blocking.service.bind("sleeps") as asleep, await blocking.service.bind("computes") as busy:
        outcomes = await asyncio.gather(
            *(blocking.service.play(asleep, a_spec(), echoing) for _ in range(2)),
            *(blocking.service.play(busy, a_spec(member=member), echoing) for member in range(40)),
        )
    assert [outcome.status for outcome in outcomes] == ["ok"] * 42
    assert set(before) <= set(blocking.pids()), "more may have been started beside it"


async def test_time_of_siblings_is_not_charged(blocking: World) -> None:
    """Together they compute for four times as long as each of them may."""
    with await blocking.service.bind("computes") as lease:
        spec = a_spec(seconds=0.1, timeout=0.5)
        outcomes = await asyncio.gather(*(blocking.service.play(lease, spec, echoing) for _ in range(20)))
    assert [outcome.status for outcome in outcomes] == ["ok"] * 20


@pytest.mark.parametrize(
    ("name", "line"),
    [("sleeps", "time.sleep(seconds)"), ("computes", "while time.thread_time() < until:"), ("matches", "return bool")],
)
async def test_its_own_time_limit_ends_it_at_its_line(
    blocking: World, name: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulse, "INTERRUPTED_AFTER", 0.3)
    before, model = blocking.pids(), Slow()
    with await blocking.service.bind("plain") as lease:
        neighbour = asyncio.create_task(blocking.service.play(lease, a_spec(timeout=0.2), model))
        with await blocking.service.bind(name) as late:
            settings = {} if name == "matches" else {"seconds": 3600.0}
            outcome = await blocking.service.play(late, a_spec(timeout=0.2, **settings), echoing)
        model.go.set()
        assert (await neighbour).status == "ok"
    assert outcome.status == "timeout" and outcome.failure is not None and not outcome.overloaded
    assert outcome.failure.message == "the episode took longer than 0.2 s"
    assert outcome.failure.file == "b.py"
    assert outcome.failure.line in (line_of(line), line_of(line) + 1)
    assert set(before) <= set(blocking.pids()), "more may have been started beside it"


async def test_compiled_code_in_a_thread_is_found(blocking: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "HUNG_AFTER", 1.0)
    outcome = await blocking.play("matches_apart", timeout=0.2)
    assert outcome.status == "error" and outcome.failure is not None
    assert outcome.failure.message == child.HUNG
    last = max(number for number, line in enumerate(BLOCKING.splitlines(), 1) if "re.match" in line)
    assert (outcome.failure.file, outcome.failure.line) == ("b.py", last)
    await blocking.until("restarted", "b")
    assert (await blocking.play("plain")).status == "ok"


async def test_a_plain_tool_delays_nobody(blocking: World) -> None:
    """Each waits for all the others: on the loop, the first would wait for ever."""

    async def model(ask: Ask) -> Reply:
        return Reply("", "tool", 0, (ToolCall("meet", {}),)) if ask.tools else Reply("done", "stop", 1)

    with await blocking.service.bind("meets") as lease:
        outcomes = await asyncio.gather(*(blocking.service.play(lease, a_spec(), model) for _ in range(8)))
    assert [outcome.rewards for outcome in outcomes] == [{"agent": 1.0}] * 8


async def test_many_plain_episodes_are_no_threads_left_behind(blocking: World) -> None:
    everybody, here = asyncio.Event(), 0

    async def together(ask: Ask) -> Reply:
        nonlocal here
        here += 1
        if here == 512:
            everybody.set()
        await everybody.wait()
        return await echoing(ask)

    with await blocking.service.bind("plain") as lease:
        outcomes = await asyncio.gather(*(blocking.service.play(lease, a_spec(), together) for _ in range(512)))
    assert [outcome.status for outcome in outcomes] == ["ok"] * 512


async def test_a_process_says_how_busy_it_is(blocking: World) -> None:
    with await blocking.service.bind("computes") as lease:
        serving = lease.serving
        playing = asyncio.gather(
            *(blocking.service.play(lease, a_spec(seconds=0.3), echoing) for _ in range(8)),
        )
        seen = []
        while not playing.done():
            await asyncio.wait((playing,), timeout=0.1)
            seen += [child.load for child in serving.children]
    assert max(load.late for load in seen) > 0.1, "a step takes three times as long as the timer's interval"
    assert max(load.busy for load in seen) > 0.0
