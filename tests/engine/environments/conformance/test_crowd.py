"""The checks of speed: many episodes at once, lines that block and their cost, what comes after the last reply."""

from __future__ import annotations

import asyncio

import pytest

from marlaas.engine.environments.conformance.check import Scope, check
from marlaas.engine.environments.conformance.checks import ALIVE, Crowd, check_crowd, check_grading, run_crowd
from marlaas.engine.environments.conformance.subject import EMPTY, Pace, Played, play
from marlaas.engine.environments.process.wire import Place
from marlaas.engine.environments.protocol import EpisodeOutcome
from marlaas.engine.trajectories import Failure
from marlaas.plugins import Episode

from ..conftest import World
from .scripted import Clock, Scripted, levels, only, scored

BLOCKING = """
import time
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
"""
BURNS = 5, 6, 7
"""Lines of ``grade`` that compute."""
SLEEPS = 19
"""The one of ``asleep`` that sleeps."""


def crowd_of(number: int, *places: Place) -> Crowd:
    return Crowd(tuple(scored(0.0) for _ in range(number)), 1.0, places)


def test_what_blocks_is_named_with_its_line_and_cost() -> None:
    found = only(check_crowd(crowd_of(64, Place("graders.py", 31, 3.2), Place("env.py", 4, 0.064)), ALIVE))
    assert found.level == "warning"
    assert found.message == (
        "Blocks for 50 ms an episode at graders.py:31; no other episode of its process moves meanwhile. 64 episodes at"
        " once need 3.2 s on one process, 1.6 s on two; the 192 that a task has alive need 9.6 s on one. Await what"
        " waits; what computes keeps nobody waiting in asyncio.to_thread, or in a score function."
    )
    assert only(check_crowd(crowd_of(64, Place("graders.py", 31, 3.2)), alive=16)).level == "note", "16 wait for 0.8 s"
    assert "in its library;" in only(check_crowd(crowd_of(64, Place("", 0, 3.2)), ALIVE)).message


def test_nothing_that_blocks() -> None:
    assert only(check_crowd(crowd_of(64), ALIVE)).message.endswith("ended as one alone does, in 1.0 s; no line blocks.")
    assert check_crowd(Crowd(), ALIVE) == []


def test_failures_that_only_a_crowd_has() -> None:
    failed = Played(EMPTY, 0, EpisodeOutcome("error", failure=Failure("Too many open files", "env.py", 9)))
    skipped = Played(EMPTY, 0, EpisodeOutcome("skip"))
    found = check_crowd(Crowd((scored(1.0), failed, failed, skipped), 1.0), ALIVE)
    assert levels(found) == ["error"]
    assert "2 of 4 episodes that are played at once fail, and none alone: env.py:9: Too many open" in found[0].message


async def test_what_fails_alone_is_not_in_the_crowd() -> None:
    async def odd_ones_fail(ep: Episode) -> float:
        await ep.ask("go")
        if ep.index % 2:
            raise ValueError("no")
        return 0.0

    subject, pace = Scripted(odd_ones_fail), Pace(10.0)
    alone = [await play(subject, index, EMPTY, pace) for index in range(4)]
    assert {one.index for one in (await run_crowd(subject, alone, 8, pace)).played} == {0, 2}
    assert await run_crowd(subject, [one for one in alone if one.index % 2], 8, pace) == Crowd()


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
    assert (len(found.played), found.unfinished, subject.watching) == (2, 2, False)
    waits = only(check_crowd(found, ALIVE))
    assert waits.level == "warning" and waits.message.startswith("2 of 4 episodes at once ended in ")
    assert waits.message.endswith("No line blocks: they wait for something that they share.")


def test_the_cost_of_a_crowd_that_did_not_end() -> None:
    """By those that ended; where none has, one took as long alone at most."""
    block = Place("graders.py", 31, 8.0)
    some = Crowd(tuple(scored(0.0) for _ in range(4)), 8.0, (block,), unfinished=60, alone=2.1)
    blocks, ended = check_crowd(some, ALIVE)
    assert blocks.message.startswith("Blocks for 2.0 s an episode at graders.py:31;")
    assert "64 episodes at once need 128.0 s on one process" in blocks.message
    assert ended.level == "note" and ended.message == (
        "4 of 64 episodes at once ended in 8.0 s, when this check's time was up; one alone takes up to 2.1 s."
    )
    none = Crowd((), 8.0, (block,), unfinished=64, alone=2.1)
    blocks, ended = check_crowd(none, ALIVE)
    assert blocks.message.startswith("Blocks for 2.1 s an episode") and ended.message.startswith("0 of 64")


def test_grading_that_pays_in_a_score_function() -> None:
    graded = [Played(EMPTY, index, EpisodeOutcome("ok", {"agent": 0.0}), (0.001, 0.05)) for index in range(8)]
    found = only(check_grading(graded, "guess", ALIVE))
    assert found.level == "warning"
    assert found.message.startswith("Of 51 ms that an episode takes of its own, 50 ms come after its last reply.")
    assert "under @guess.score" in found.message
    assert not check_grading(graded, "guess", alive=16), "16 episodes wait for less than a second"
    before = [Played(EMPTY, 0, EpisodeOutcome("ok", {"agent": 0.0}), (0.2, 0.05))]
    never_asked = [Played(EMPTY, 0, EpisodeOutcome("ok", {"agent": 0.0}), (0.2,))]
    assert not check_grading(before, "guess", ALIVE) and not check_grading(never_asked, "guess", ALIVE)


@pytest.mark.processes
async def test_a_real_process_says_which_line_blocks(world: World) -> None:
    world.save("games.py", BLOCKING)
    await world.service.start()
    findings = await check(world.service, "games/slow", scope=Scope(prompts=2, together=8, seconds=60))
    found = next(one for one in findings if one.message.startswith("Blocks for "))
    assert found.level == "warning" and any(f"at games.py:{line};" in found.message for line in BURNS), found.message
    assert "under @slow.score" in only([one for one in findings if one.check == "grading"]).message
    findings = await check(world.service, "games/asleep", scope=Scope(prompts=1, seconds=2))
    blocks, ended = [one for one in findings if one.check == "concurrency"]
    assert f"at games.py:{SLEEPS}; no other" in blocks.message and "64 episodes at once need 1" in blocks.message
    assert " of 64 episodes at once ended in " in ended.message, "64 take 12.8 s: a thread said what it had seen"
    findings = await check(world.service, "games/crowded", scope=Scope(prompts=2, together=16))
    failed = only([one for one in findings if one.check == "concurrency"])
    assert failed.level == "error" and "too many players at one table" in failed.message


GYM = """
from marlaas.plugins.adapters import gymnasium

class World:
    def reset(self, seed):
        return "?", {}
    def step(self, action):
        return "!", 1.0, True, False, {}

world = gymnasium(World, name="world", act=int)
"""


@pytest.mark.processes
async def test_a_librarys_environment_cannot_move_its_grading(world: World) -> None:
    world.save("world.py", GYM)
    await world.service.start()
    with await world.service.bind("world") as lease:
        assert not lease.declared.own, "its author calls an adapter, and writes no function that asks"
