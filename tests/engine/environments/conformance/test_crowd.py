"""The checks of speed: many episodes at once, lines that block and their cost, what comes after the last reply."""

from __future__ import annotations

import asyncio

import pytest

from marlaas.engine.environments.conformance.check import Scope, check
from marlaas.engine.environments.conformance.checks import ALIVE, check_crowd
from marlaas.engine.environments.conformance.subject import EMPTY, Crowd, Pace, Played, play, run_crowd
from marlaas.engine.environments.protocol import EpisodeOutcome
from marlaas.engine.trajectories import Failure
from marlaas.plugins import Episode

from ..conftest import World
from .scripted import Clock, Scripted, judged, levels, only, scored

BLOCKING = """
import asyncio, time
from marlaas.plugins import env

def grade(text):
    end = time.thread_time() + 0.05
    while time.thread_time() < end:
        pass
    return len(text) / 100

@env
async def slow(ep):
    reply = await ep.ask(f"{ep.rng.randrange(10**6)}")
    return grade(reply.text)

@env
async def asleep(ep):
    await ep.ask(f"{ep.rng.randrange(10**6)}")
    time.sleep(0.2)
    return 0.0

@env
async def crowded(ep):
    global players
    players += 1
    try:
        await ep.ask(f"{ep.rng.randrange(10**6)}")
        if players > 8:
            raise RuntimeError("too many players at one table")
    finally:
        players -= 1
    return 0.0

players = 0

@env
async def naps(ep):
    await ep.ask(f"{ep.rng.randrange(10**6)}")
    time.sleep(0.02)
    return 0.0

@env
async def awaits(ep):
    await ep.ask(f"{ep.rng.randrange(10**6)}")
    await asyncio.sleep(0.02)
    return 0.0
"""
BURNS = 5, 6, 7
"""Lines of ``grade`` that compute."""
SLEEPS = 19
"""The one of ``asleep`` that sleeps."""
NAPS = 39
"""The one of ``naps``."""


def crowd_of(number: int, unfinished: int = 0, **held: float) -> Crowd:
    """``held``: seconds by file, at line 31."""
    places = {(file.replace("_", "."), 31): seconds for file, seconds in held.items()}
    return Crowd(tuple(scored(0.0) for _ in range(number)), 3.2, places, unfinished, alone=0.06)


def test_what_blocks_is_named_with_its_line_and_cost() -> None:
    found = only(judged(check_crowd, crowd=crowd_of(64, graders_py=2.8, env_py=0.4)))
    assert found.level == "warning", "the 192 that a task has alive need 9.6 s"
    assert found.message == (
        "Blocks at graders.py:31: no other episode of its process moves meanwhile. Lines that block take 50 ms of an"
        " episode. 64 of 64 episodes at once ended in 3.2 s; one alone takes up to 60 ms. Await what waits; what"
        " computes keeps nobody waiting in asyncio.to_thread, or in a score function."
    )
    few = judged(check_crowd, crowd=crowd_of(64, graders_py=3.2), alive=16)
    assert only(few).level == "note", "16 wait for 0.8 s"
    library = Crowd(tuple(scored(0.0) for _ in range(64)), 3.2, {("", 0): 3.2})
    assert "Blocks in its library:" in only(judged(check_crowd, crowd=library)).message


def test_the_cost_of_a_crowd_that_did_not_end() -> None:
    """By those that ended, and at most what one takes."""
    some = only(judged(check_crowd, crowd=crowd_of(64, 64, f_py=3.2))).message
    assert "64 of 128 episodes at once ended in 3.2 s" in some and "take 50 ms of an episode" in some
    assert "take 60 ms of an episode. 0 of 64" in only(judged(check_crowd, crowd=crowd_of(0, 64, f_py=3.2))).message


def test_nothing_that_blocks() -> None:
    for crowd in (crowd_of(64), crowd_of(64, f_py=0.1)):
        found = only(judged(check_crowd, crowd=crowd))
        assert found.message.endswith("ended as one alone does, in 3.2 s; no line was seen to block.")
    assert judged(check_crowd) == []


def test_failures_that_only_a_crowd_has() -> None:
    failed = Played(EMPTY, 0, EpisodeOutcome("error", failure=Failure("Too many open files", "env.py", 9)))
    skipped = Played(EMPTY, 0, EpisodeOutcome("skip"))
    found = judged(check_crowd, crowd=Crowd((scored(1.0), failed, failed, skipped), 1.0))
    assert levels(found) == ["error"]
    assert "2 of 4 episodes that are played at once fail, and none alone: env.py:9: Too many open" in found[0].message


def test_how_many_a_task_has_alive() -> None:
    assert ALIVE == 192


@pytest.mark.parametrize("own", [0.0, 0.5, 4.0, 9.0])
async def test_64_are_played_at_once_whatever_one_takes(own: float) -> None:
    clock, alive, most = Clock(), 0, 0

    async def together(ep: Episode) -> float:
        nonlocal alive, most
        alive += 1
        most = max(most, alive)
        clock.now += own if not subject.watching else 0.0
        await ep.ask("go")
        await asyncio.sleep(0)
        alive -= 1
        return 0.0

    subject = Scripted(together)
    pace = Pace(10.0 + own, clock=clock)
    found = await run_crowd(subject, [await play(subject, 0, EMPTY, pace)], 64, pace)
    assert found is not None
    assert (len(found.played), found.unfinished, most) == (64, 0, 64) and not subject.watching


async def test_the_time_ends_what_is_left_of_them() -> None:
    async def some_wait(ep: Episode) -> float:
        await ep.ask("go")
        if subject.watching and ep.index:
            await asyncio.Event().wait()
        return 0.0

    subject, pace = Scripted(some_wait), Pace(0.1)
    alone = [await play(subject, index, EMPTY, pace) for index in (0, 1)]
    found = await run_crowd(subject, alone, 4, pace)
    assert found is not None
    assert (len(found.played), found.unfinished, subject.watching) == (2, 2, False)
    waits = only(judged(check_crowd, crowd=found))
    assert waits.level == "warning" and waits.message.startswith("2 of 4 episodes at once ended in ")
    assert waits.message.endswith("No line was seen to block: they wait for something that they share.")


@pytest.mark.processes
async def test_a_real_process_says_which_line_blocks(world: World) -> None:
    world.save("games.py", BLOCKING)
    await world.service.start()
    findings = await check(world.service, "games/slow", scope=Scope(prompts=2, together=8, seconds=60))
    found = only([one for one in findings if one.message.startswith("Blocks at ")])
    assert found.level == "warning" and any(f"at games.py:{line}:" in found.message for line in BURNS), found.message
    findings = await check(world.service, "games/asleep", scope=Scope(prompts=1, seconds=2))
    blocks = only([one for one in findings if one.check == "concurrency"])
    assert f"at games.py:{SLEEPS}: no other" in blocks.message and " of 64 episodes at once" in blocks.message
    findings = await check(world.service, "games/naps", scope=Scope(prompts=2))
    blocks = only([one for one in findings if one.check == "concurrency"])
    assert f"at games.py:{NAPS}: no other" in blocks.message and "64 of 64 episodes at once" in blocks.message
    findings = await check(world.service, "games/awaits", scope=Scope(prompts=2))
    well = only([one for one in findings if one.check == "concurrency"])
    assert well.message.startswith("64 episodes at once") and well.message.endswith("no line was seen to block.")
    findings = await check(world.service, "games/crowded", scope=Scope(prompts=2, together=16))
    failed = only([one for one in findings if one.check == "concurrency"])
    assert failed.level == "error" and "too many players at one table" in failed.message
