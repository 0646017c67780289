"""Scoring in separate processes: a score function that goes wrong harms no episode."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from marlaas.engine.environments import pool, served_version
from marlaas.engine.environments.process import child
from marlaas.engine.environments.protocol import Answering, EpisodeOutcome, Ranking
from marlaas.plugins.messages import Ask, Reply

from .conftest import World, a_spec, a_world, echoing, line_of

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="module")]

JUDGED = """
import os
from marlaas.plugins.host import meter
from marlaas.plugins import Invalid, Score, env

meter.STUBBORN = meter.TICK = 0.1

async def play(ep, how: str = "right", marker: str = ""):
    ep.task = {"how": how, "marker": marker}
    reply = await ep.ask(how)
    ep.log(said=reply.text)
    ep.reward(0.25)
    if how == "returns":
        return 1.0
    if how == "invalid":
        raise Invalid("no move", reward=-1)
    if how == "unsendable":
        ep.task = object()

judged = env(name="judged")(play)
hasty = env(name="hasty", score_timeout=0.4)(play)

@judged.score
@hasty.score
def score(task, transcript):
    match task["how"]:
        case "spins":
            while "no end":
                pass
        case "stubborn":
            while True:
                try:
                    while True:
                        pass
                except BaseException:
                    pass
        case "waits":
            while not os.path.exists(task["marker"]):
                pass
        case "exits":
            os._exit(3)
        case "exits once" if not os.path.exists(task["marker"]):
            open(task["marker"], "w").close()
            os._exit(3)
        case "nan":
            return float("nan")
        case "raises":
            raise KeyError("lost")
    return Score(float(transcript.text == task["how"]), process=os.getpid())

@env
async def plain(ep):
    return (await ep.ask("x")).text == "x"

@env
async def compared(ep, keep: int = 2):
    ep.task = keep
    reply = await ep.ask("x" * (1 + ep.noise.randrange(100)))
    ep.log(length=len(reply.text))
    return Score(1.0, own=0.5)

@compared.group
async def rank(episodes):
    assert {(one.reward, one.parts["own"]) for one in episodes} == {(1.0, 0.5)}
    return [-one.logged["length"] / len(one.transcript.text) for one in episodes][:episodes[0].task]
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def judged(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with a_world(tmp_path_factory.mktemp("judged")) as world:
        await world.serve(p=JUDGED)
        yield world


async def test_a_score_comes_from_another_process_that_is_kept(judged: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with await judged.service.bind("judged") as lease:
        assert len(lease.serving.pids) == 1, "none is started before it is needed"
        first, second = [await judged.service.play(lease, a_spec(), echoing) for _ in range(2)]
        assert (first.status, first.rewards, first.metrics) == ("ok", {"agent": 1.25}, {"said": "right"})
        assert first.parts == second.parts
        assert lease.serving.pids == [lease.serving.pids[0], first.parts["process"]]
        assert judged.service.processes() == [("p", pid) for pid in lease.serving.pids]
    monkeypatch.setattr(served_version, "LARGEST_TRANSCRIPT", 3)
    large = await judged.play("judged")
    assert large.failure is not None and "more was said in the episode than can be scored" in large.failure.message
    monkeypatch.setattr(served_version, "LARGEST_TRANSCRIPT", 1 << 30)
    large = await judged.play("judged", long_winded, how="y" * (1 << 20))
    assert large.status == "error" and large.failure is not None and "over the limit" in large.failure.message
    broken = await judged.play("judged", how="invalid")
    assert (broken.status, broken.rewards, broken.invalid) == ("ok", {"agent": -0.75}, "no move")


WRONG = (
    ("hasty", "spins", "timeout", "the score of hasty took longer than 0.4 s", "while"),
    ("hasty", "stubborn", "timeout", "its score took longer than 0.4 s and did not stop", ""),
    ("judged", "exits", "error", "by itself with code 3", ""),
    ("judged", "raises", "error", "KeyError: 'lost'", "raise KeyError"),
    ("judged", "nan", "error", "the reward must be finite", "def score"),
    ("judged", "returns", "error", "judged itself must return nothing, not 1.0", "async def play"),
    ("judged", "unsendable", "error", "JSON cannot carry its task there", "async def play"),
)


async def test_what_goes_wrong_has_no_reward(judged: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "BEAT", 0.2)
    with await judged.service.bind("judged") as lease:
        playing = lease.serving.pids[0]
        for name, how, status, says, place in WRONG:
            outcome = await judged.play(name, how=how)
            assert outcome.status == status and outcome.rewards == {}
            assert outcome.failure is not None and says in outcome.failure.message
            if place == "while":
                assert outcome.failure.line in (line_of(JUDGED, "no end"), line_of(JUDGED, "no end") + 1)
            elif place:
                assert (outcome.failure.file, outcome.failure.line) == ("p.py", line_of(JUDGED, place))
            assert (await judged.play("judged")).rewards == {"agent": 1.25}
        assert lease.serving.pids[0] == playing, "who plays has noticed nothing"


async def test_an_endless_score_holds_up_nobody(judged: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "LOOK", 0.05)
    monkeypatch.setattr(pool, "GROW_AFTER", 0.0)
    marker = tmp_path / "marker"
    endless = asyncio.create_task(judged.play("judged", how="waits", marker=str(marker)))
    plain = await asyncio.gather(*(judged.play("plain") for _ in range(50)))
    assert {outcome.status for outcome in plain} == {"ok"}
    others = await asyncio.gather(*(judged.play("judged") for _ in range(5)))
    assert not endless.done() and {outcome.status for outcome in others} == {"ok"}
    marker.touch()
    outcome = await endless
    assert outcome.status == "ok" and outcome.parts["process"] not in {one.parts["process"] for one in others}


async def test_an_episode_gives_its_place_back_before_it_is_scored(judged: World, tmp_path: Path) -> None:
    marker, over = tmp_path / "marker", asyncio.Event()
    with await judged.service.bind("judged") as lease:
        spec = a_spec(how="waits", marker=str(marker))
        scored = asyncio.create_task(judged.service.play(lease, spec, Answering(echoing, over.set)))
        await over.wait()
        assert lease.serving.crew.live == 0 and not scored.done()
        marker.touch()
        assert (await scored).status == "ok"


async def test_a_score_that_is_cancelled_ends_its_process_only(judged: World, tmp_path: Path) -> None:
    with await judged.service.bind("judged") as lease:
        spec, over = a_spec(how="waits", marker=str(tmp_path / "never")), asyncio.Event()
        scored = asyncio.create_task(judged.service.play(lease, spec, Answering(echoing, over.set)))
        await over.wait()
        while not (scoring := lease.serving.pids[1:]):
            await asyncio.sleep(0.01)
        scored.cancel()
        await asyncio.gather(scored, return_exceptions=True)
        assert len(lease.serving.pids[1:]) == len(scoring) - 1
        assert {(await judged.play("judged")).status for _ in range(3)} == {"ok"}


async def test_who_loses_the_process_is_tried_once_more(judged: World, tmp_path: Path) -> None:
    outcome = await judged.play("judged", how="exits once", marker=str(tmp_path / "marker"))
    assert outcome.status == "ok"
    died = await judged.until("died", "p")
    assert died.failure is not None and died.failure.message.startswith("its scoring process: ")
    os.kill(int(outcome.parts["process"]), signal.SIGKILL)
    again = await judged.play("judged")
    assert again.status == "ok" and again.parts != outcome.parts


async def long_winded(ask: Ask) -> Reply:
    return Reply("x" * (2 << 20), "stop", 0)


async def test_a_failed_ranking_overturns_counted_outcomes(judged: World) -> None:
    service = judged.service
    with await service.bind("compared") as lease:
        await service.play(lease, a_spec(), echoing)  # on purpose, by a check
        members = [await service.play(lease, a_spec(member=member), echoing, counts=True) for member in range(3)]
        assert [(one.rewards, one.task) for one in members] == [({"agent": 1.0}, 2)] * 3
        ranking = Ranking(({"agent": -1.0}, {"agent": -1.0}))
        assert await service.rank(lease, members[:2], counts=True) == ranking
        await service.rank(lease, members)
        counted = service.outcomes.take()
        assert {(one.environment, one.status) for one in counted.outcomes} == {("p/compared", "ok")}
        assert sum(one.episodes for one in counted.outcomes) == 3 and counted.failures == ()
        failed = await service.rank(lease, members, counts=True)
    assert isinstance(failed, EpisodeOutcome) and failed.status == "error" and failed.failure is not None
    assert "the ranking returned 2 rewards for 3 episodes" in failed.failure.message
    assert (failed.failure.file, failed.failure.line) == ("p.py", line_of(JUDGED, "async def rank"))
    counted = service.outcomes.take()
    assert sum(one.episodes for one in counted.outcomes if one.status == "error") == 3
    assert sum(one.episodes for one in counted.outcomes) == 0
    assert counted.failures[0].failure == failed.failure


async def test_a_replaced_version_ends_with_its_scoring_processes(judged: World) -> None:
    lease = await judged.service.bind("judged")
    outcome = await judged.service.play(lease, a_spec(), echoing)
    await judged.edit("p", JUDGED + "# edited\n")
    old = set(lease.serving.pids)
    assert outcome.parts["process"] in old
    lease.release()
    while old & set(judged.pids()):
        await asyncio.sleep(0)
