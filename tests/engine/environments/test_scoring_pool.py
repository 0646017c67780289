"""How many scoring processes there are, and what becomes of a request whose process goes away. Processes are fakes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import cast

import pytest

from marlaas.engine.environments import scoring
from marlaas.engine.environments.budget import ProcessBudget
from marlaas.engine.environments.process.child import BrokenPlugin, Child, Owner
from marlaas.engine.environments.process.wire import Described
from marlaas.engine.environments.protocol import EpisodeOutcome, Unscored
from marlaas.engine.environments.recorder import Recorder
from marlaas.engine.environments.scoring import ScoringPool
from marlaas.engine.trajectories import Failure
from marlaas.plugins.messages import Answer
from marlaas.plugins.scoring import Transcript

MOST = 5
FOUND = Described("e", 60.0, "", (), scored=True, score_timeout=5.0)
OK = EpisodeOutcome("ok", {"agent": 1.0})


@dataclass(eq=False)
class FakeChild:
    """A process whose scoring ends when the test says so."""

    pid: int
    dead: Failure | None = None
    full: bool = False
    verdict: asyncio.Future[EpisodeOutcome] = field(default_factory=asyncio.Future)

    async def score(self, environment: str, played: Unscored, transcript: Transcript, timeout: float) -> EpisodeOutcome:
        return await self.verdict

    def interrupt(self) -> None: ...

    def kill(self, reason: str, cut: bool = False) -> None:
        self.die(EpisodeOutcome("cancelled" if cut else "error", failure=Failure(reason)))

    def die(self, outcome: EpisodeOutcome) -> None:
        self.dead = outcome.failure
        if not self.verdict.done():
            self.verdict.set_result(outcome)


class Pool:
    """A pool of fakes."""

    def __init__(self, most: int = MOST, cores: int = 64) -> None:
        self.children: list[FakeChild] = []
        self.reaped: list[FakeChild] = []
        self.broken: BrokenPlugin | None = None
        self.may_start = asyncio.Event()
        self.may_start.set()
        self.pool = ScoringPool(
            self._start,
            lambda child: self.reaped.append(cast(FakeChild, child)),
            lambda _: None,
            most,
            ProcessBudget(cores),
        )

    async def _start(self, owner: Owner) -> Child:
        if self.broken is not None:
            raise self.broken
        child = FakeChild(len(self.children))
        self.children.append(child)
        await self.may_start.wait()
        return cast(Child, child)

    def score(self) -> asyncio.Task[EpisodeOutcome]:
        recorder = Recorder(cast(Answer, None))
        return asyncio.ensure_future(self.pool.outcome(FOUND, Unscored(None), recorder))

    async def until_started(self, count: int) -> None:
        while len(self.children) < count:
            await asyncio.sleep(0)
        for _ in range(5):
            await asyncio.sleep(0)


async def test_requests_wait_for_one_process_while_it_is_quick() -> None:
    made = Pool()
    requests = [made.score() for _ in range(10)]
    await made.until_started(1)
    made.children[0].verdict.set_result(OK)
    assert await asyncio.gather(*requests) == [OK] * 10
    assert len(made.children) == 1 and made.pool.pids == [0] and not made.reaped


async def test_there_are_a_few_when_it_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "PATIENCE", 0.0)
    made = Pool()
    requests = [made.score() for _ in range(10)]
    await made.until_started(MOST)
    for child in made.children:
        child.verdict.set_result(OK)
    assert await asyncio.gather(*requests) == [OK] * 10
    assert made.pool.pids and len(made.children) == MOST


@pytest.mark.parametrize(("most", "cores", "processes"), [(1, 64, 1), (3, 64, 3), (6, 64, 6), (64, 2, 3)])
async def test_their_number_has_bounds(most: int, cores: int, processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The author's, and the machine's: one process, and as many further ones as there are cores."""
    monkeypatch.setattr(scoring, "PATIENCE", 0.0)
    made = Pool(most, cores)
    requests = [made.score() for _ in range(10)]
    await made.until_started(processes)
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(made.children) == processes and made.pool.further == processes - 1
    for child in made.children:
        child.verdict.set_result(OK)
    assert await asyncio.gather(*requests) == [OK] * 10


async def test_a_request_that_gives_up_its_turn_holds_up_nobody() -> None:
    made = Pool()
    first, second, third = (made.score() for _ in range(3))
    await made.until_started(1)
    second.cancel()
    await asyncio.wait((second,))
    made.children[0].verdict.set_result(OK)
    assert list(await asyncio.gather(first, third)) == [OK] * 2


async def test_processes_that_are_not_needed_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "PATIENCE", 0.0)
    monkeypatch.setattr(scoring, "REST", 0.0)
    made = Pool()
    requests = [made.score() for _ in range(3)]
    await made.until_started(3)
    for child in made.children:
        child.verdict.set_result(OK)
    assert await asyncio.gather(*requests) == [OK] * 3
    while len(made.pool.pids) > 1:
        await asyncio.sleep(0)
    assert len(made.reaped) == 2 and all(child.dead for child in made.reaped) and not made.pool.further
    assert await made.score() == OK and len(made.children) == 3


async def test_a_replaced_version_leaves_the_cores_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "PATIENCE", 0.0)
    pool = Pool()
    scores = [pool.score() for _ in range(MOST)]
    await pool.until_started(MOST)
    assert pool.pool.further == MOST - 1
    pool.pool.end("a newer version took its place")
    await asyncio.gather(*scores)
    assert pool.pool.further == 0 and pool.pool.pids == []


async def test_processes_that_died_leave_the_cores_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "PATIENCE", 0.0)
    monkeypatch.setattr(scoring, "REST", 0.0)
    pool = Pool()
    scores = [pool.score() for _ in range(MOST)]
    await pool.until_started(MOST)
    for child in pool.children:
        child.die(EpisodeOutcome("timeout", failure=Failure("too late"), died=True))
    assert {outcome.status for outcome in await asyncio.gather(*scores)} == {"timeout"}
    async with asyncio.timeout(10.0):
        while pool.pool.further:
            await asyncio.sleep(0)


async def test_a_request_is_tried_again_when_its_process_died() -> None:
    made = Pool()
    request = made.score()
    died = EpisodeOutcome("error", failure=Failure("killed"))
    for count in (1, 2):
        await made.until_started(count)
        made.children[-1].die(died)
    outcome = await request
    assert (outcome.status, outcome.failure) == ("error", Failure("killed"))
    assert made.reaped == made.children and made.pool.pids == []


async def test_what_is_ended_is_not_tried_again() -> None:
    made = Pool()
    request = made.score()
    await made.until_started(1)
    made.pool.end("replaced", cut=True)
    assert (await request).status == "cancelled"
    made.may_start.clear()
    request = made.score()
    await made.until_started(2)
    made.pool.end("replaced")
    made.may_start.set()
    assert (await request).status == "error"
    assert made.reaped == made.children and made.pool.pids == []


async def test_what_waits_when_all_is_ended_starts_nothing() -> None:
    made = Pool()
    requests = [made.score() for _ in range(3)]
    await made.until_started(1)
    made.pool.end("replaced", cut=True)
    assert {outcome.status for outcome in await asyncio.gather(*requests)} == {"cancelled"}
    assert len(made.children) == 1 and made.pool.pids == []


async def test_what_was_being_started_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "PATIENCE", 0.0)
    made = Pool()
    made.may_start.clear()
    late = made.score()
    await made.until_started(1)
    made.pool.end("replaced")
    later = made.score()
    await made.until_started(2)
    made.may_start.set()
    made.children[1].verdict.set_result(OK)
    assert (await late).status == "error" and await later == OK
    assert made.reaped == made.children[:1] and made.pool.pids == [1]


async def test_a_request_that_nobody_waits_for_ends_its_process() -> None:
    made = Pool()
    request = made.score()
    await made.until_started(1)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    assert made.children[0].dead is not None and made.reaped == made.children
    again = made.score()
    await made.until_started(2)
    made.children[1].verdict.set_result(OK)
    assert await again == OK


async def test_a_version_that_cannot_start_is_an_error_with_its_place() -> None:
    made = Pool()
    made.broken = BrokenPlugin(Failure("no module", "p.py", 1))
    outcome = await made.score()
    assert (outcome.status, outcome.failure) == ("error", Failure("no module", "p.py", 1))
