"""The check that plays episodes both ways, with and without what they compute after their last reply."""

from __future__ import annotations

import pytest

from marlaas.engine.environments.conformance import load
from marlaas.engine.environments.conformance.check import Scope, check
from marlaas.engine.environments.conformance.finding import Finding
from marlaas.engine.environments.conformance.load import ALIVE, Crowd, judge_grading, observe_grading
from marlaas.engine.environments.conformance.replies import EMPTY, Played, play
from marlaas.engine.environments.conformance.subject import Pace
from marlaas.engine.environments.process.wire import Place, Watched
from marlaas.plugins import Episode

from ..conftest import World
from .scripted import Scripted, only, scored

WHOLE = Crowd(tuple(scored(0.0) for _ in range(64)), 3.3, Watched(3.3, 3.264, (Place("g.py", 6, 3.2), Place("", 0, 4))))
UNFINISHED = Crowd(WHOLE.played, 0.1, Watched(0.1, 0.064, (Place("g.py", 2, 0.06),)))

GRADED = """
import time
from marlaas.plugins import env

def grade(text):
    end = time.thread_time() + 0.02
    while time.thread_time() < end:
        pass
    return len(text) / 100

@env
async def inline(ep):
    for _ in range(2):
        reply = await ep.ask(f"{ep.rng.randrange(10**6)}")
    return grade(reply.text)

@env
def plain(ep):
    return grade(ep.ask(f"{ep.rng.randrange(10**6)}").text)

@env
class Formed:
    async def play(self, ep):
        return grade((await ep.ask(f"{ep.rng.randrange(10**6)}")).text)

@env
async def before(ep):
    grade("")
    await ep.ask(f"{ep.rng.randrange(10**6)}")
    return 0.5

@env
async def apart(ep):
    ep.task = 0
    await ep.ask(f"{ep.rng.randrange(10**6)}")

@apart.score
def score(task, transcript):
    return grade(transcript.text)

@env
async def quick(ep):
    return len((await ep.ask(f"{ep.rng.randrange(10**6)}")).text) / 100
"""
BURNS = 6, 7


def test_the_offer_says_what_to_move_and_what_it_gains() -> None:
    found = only(judge_grading(WHOLE, UNFINISHED, "guess", ALIVE, cores=2))
    assert found.level == "warning"
    assert found.message == (
        "Of 51 ms that an episode computes, 50 ms come after its last reply, at g.py:6. 64 episodes at once took 3.3 s,"
        " and 100 ms without that: move it into a function under @guess.score, which is given the task and what was"
        " said, and runs in processes of its own, 2 at a time on this machine, while other episodes play on."
    )


@pytest.mark.parametrize(
    ("whole", "unfinished", "alive"),
    [
        pytest.param(3.264, 2.6, ALIVE, id="most of it comes before"),
        pytest.param(3.264, 0.064, 16, id="16 episodes wait for less than a second"),
        pytest.param(0.16, 0.0, 10_000, id="a quick one"),
        pytest.param(3.264, 3.3, ALIVE, id="noise"),
    ],
)
def test_nothing_is_offered_where_it_does_not_pay(whole: float, unfinished: float, alive: int) -> None:
    ended, cut = (Crowd(WHOLE.played, 1.0, Watched(1.0, seconds)) for seconds in (whole, unfinished))
    assert not judge_grading(ended, cut, "guess", alive, cores=2)
    assert not judge_grading(WHOLE, Crowd(), "guess", ALIVE, cores=2), "it was not looked at"


async def crowd_of(subject: Scripted, pace: Pace) -> Crowd:
    played = [await play(subject, index, EMPTY, pace) for index in range(3)]
    return Crowd(tuple(played), 1.0, Watched(1.0, 0.3))


async def test_the_second_time_nobody_gets_the_last_reply() -> None:
    replies = 0

    async def two_turns(ep: Episode) -> float:
        nonlocal replies
        for _ in range(2):
            await ep.ask("go")
            replies += 1
        return 1.0

    subject, pace = Scripted(two_turns), Pace(10.0)
    whole = await crowd_of(subject, pace)
    replies, subject.busy = 0, Watched(0.1, 0.01)
    found = await observe_grading(subject, whole, ALIVE, pace)
    assert replies == 3 and [one.outcome for one in found.played] == [None] * 3
    assert found.watched == subject.busy and not subject.watching


@pytest.mark.parametrize("why", ["a library's", "quick", "failed", "never asked"])
async def test_it_is_played_twice_only_for_an_offer(why: str) -> None:
    async def plays(ep: Episode) -> float:
        if why != "never asked":
            await ep.ask("go")
        return 1.0

    subject, pace = Scripted(plays), Pace(10.0)
    whole = await crowd_of(subject, pace)
    subject.movable = why != "a library's"
    if why == "quick":
        whole = Crowd(whole.played, 1.0, Watched(1.0, 0.003))
    if why == "failed":
        whole = Crowd((*whole.played, Played(EMPTY, 0, None)), 1.0, whole.watched)
    subject.played = 0
    assert await observe_grading(subject, whole, ALIVE, pace) == Crowd() and not subject.played


@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "offered"),
    [("inline", True), ("plain", True), ("Formed", True), ("before", False), ("apart", False), ("quick", False)],
)
async def test_real_environments_are_measured(world: World, name: str, offered: bool) -> None:
    world.save("games.py", GRADED)
    await world.service.start()
    findings = [one for one in await checked(world, f"games/{name}") if one.check == load.CHECK_GRADING]
    assert bool(findings) == offered, findings
    if offered:
        text = only(findings).message
        assert f"under @{name}.score" in text
        assert name == "plain" or any(f", at games.py:{line}." in text for line in BURNS), text


@pytest.mark.processes
async def test_a_set_is_offered_it_and_a_library_is_not(world: World) -> None:
    (world.folder / "pack").mkdir()
    (world.folder / "pack" / "grading.py").write_text(GRADED.partition("@env")[0])
    game = GRADED.partition("@env\n")[2].partition("\n\n@env")[0]
    imports = "from marlaas.plugins import env\nfrom .grading import grade\n\n@env\n"
    (world.folder / "pack" / "__init__.py").write_text(imports + game)
    world.save("world.py", GYM)
    await world.service.start()
    found = [one for one in await checked(world, "pack/inline") if one.check == load.CHECK_GRADING]
    assert any(f", at pack/grading.py:{line}." in only(found).message for line in BURNS), found
    with await world.service.bind("world") as lease:
        assert not lease.declared.own, "its author calls an adapter, and writes no function that asks"


GYM = """
from marlaas.plugins.adapters import gymnasium

class World:
    def reset(self, seed):
        return "?", {}
    def step(self, action):
        return "!", 1.0, True, False, {}

world = gymnasium(World, name="world", act=int)
"""


async def checked(world: World, name: str) -> list[Finding]:
    return await check(world.service, name, scope=Scope(prompts=2, together=4, seconds=60, cores=2))
