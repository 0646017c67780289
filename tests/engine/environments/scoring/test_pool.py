"""Which worker scores for whom, how many there are, and what becomes of a request whose process goes away. Processes
are fakes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from marlaas.engine.environments.process.child import BrokenPlugin
from marlaas.engine.environments.process.wire import Spent
from marlaas.engine.environments.protocol import EpisodeOutcome
from marlaas.engine.environments.scoring import pool
from marlaas.engine.environments.scoring.pool import Requests
from marlaas.engine.trajectories import Failure

from .fakes import DIED, OK, REFUSED, FakeChild, Pool, settled


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits is looked at again at once, and a further worker costs nothing."""
    monkeypatch.setattr(pool, "PATIENCE", 0.0)
    monkeypatch.setattr(pool, "PRICE", 1e-9)


async def test_requests_wait_for_one_process_while_it_is_quick() -> None:
    made = Pool()
    version = made.version()
    requests = [version.score() for _ in range(10)]
    await made.until_started(1)
    made.children[0].verdict.set_result(OK)
    assert await asyncio.gather(*requests) == [OK] * 10
    assert len(made.children) == 1 and version.scoring.pids == [0]
    assert made.children[0].loaded == [version.number], "it is loaded once"


@pytest.mark.parametrize(
    ("most", "cores", "room", "processes"),
    [(1, 64, None, 1), (3, 64, None, 3), (None, 64, None, 10), (None, 2, None, 3), (None, 2, 5, 5), (None, 64, 1, 1)],
)
async def test_their_number_has_bounds(
    most: int | None, cores: int, room: int | None, processes: int, eager: None
) -> None:
    """The author's, the machine's (one process, and as many further ones as there are cores), and the settings'."""
    made = Pool(cores, room)
    version = made.version(most)
    requests = [version.score() for _ in range(10)]
    await made.until_started(processes)
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(made.children) == processes
    for child in made.children:
        child.verdict.set_result(OK)
    assert await asyncio.gather(*requests) == [OK] * 10


async def test_each_of_several_versions_may_have_one(eager: None) -> None:
    """As long as there are cores: the budget counts what goes beyond."""
    made = Pool(cores=4)
    versions = [made.version() for _ in range(3)]
    requests = [version.score() for version in versions for _ in range(5)]
    await made.until_started(3)
    assert made.pool.size - made.pool.further == 3
    await made.until_started(7)
    assert made.pool.further == 4 and made.budget.left == 0
    for child in made.children:
        child.verdict.set_result(OK)
    assert await asyncio.gather(*requests) == [OK] * 15


async def test_functions_that_wait_have_more_than_the_cores(eager: None) -> None:
    made = Pool(cores=2)
    version = made.version()
    version.known.requests = Requests().after(2.0, Spent(0.5, 1.5))
    requests = [version.score() for _ in range(20)]
    await made.until_started(12)
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(made.children) == 12 and made.pool.further == 2, "each counts as a quarter"
    for request in requests:
        request.cancel()
    await asyncio.wait(requests)
    assert not made.living and made.budget.left == 2


async def test_a_version_ends_while_its_process_fails_to_start() -> None:
    """Else it would start another, which nobody ends any more."""
    made = Pool()
    version = made.version()
    made.may_start.clear()
    request = version.score()
    await made.until_started(1)
    made.broken = BrokenPlugin(Failure("it cannot be started"), died=True)
    version.scoring.end("a newer version took its place")
    made.may_start.set()
    assert (await request).failure == Failure("a newer version took its place")
    await settled()
    assert len(made.children) == 1 and not made.living and not made.pool.size


async def test_load_is_no_reason_for_further_processes(monkeypatch: pytest.MonkeyPatch, eager: None) -> None:
    """An engine without a core of its own hears late of answers. The function computed all the while, by its process's
    account, so two cores have no work for more workers than before, however long that takes."""
    now = 0.0
    monkeypatch.setattr(pool, "time", SimpleNamespace(monotonic=lambda: now))
    made = Pool(cores=2)
    version = made.version()
    requests = [version.score() for _ in range(100)]
    await made.until_started(1)
    for _ in range(20):
        now += 2.0
        for child in made.living:
            child.spent = Spent(0.1, 0.0)
            child.verdict.set_result(OK)
            child.verdict = asyncio.Future()
        await settled()
    assert version.known.requests.seconds == pytest.approx(2.0, rel=0.01)
    assert len(made.children) == 3 and version.known.requests.weight == 1.0
    for request in requests:
        request.cancel()
    await asyncio.wait(requests)


async def test_a_worker_scores_for_any_version_next() -> None:
    made = Pool(cores=1)
    one, other = made.version(), made.version()
    for version in (one, other, one):
        request = version.score()
        await made.until_started(1)
        if not made.children[0].verdict.done():
            made.children[0].verdict.set_result(OK)
        assert await request == OK
        assert version.scoring.pids == [0]
    (child,) = made.children
    assert child.scored == [one.number, other.number, one.number]
    assert child.loaded == [one.number, other.number], "what is loaded is kept"
    assert other.scoring.pids == [], "a process is counted once, where it was used last"


async def test_a_worker_keeps_a_few_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "KEPT", 2)
    made = Pool(cores=1)
    versions = [made.version() for _ in range(3)]
    for place in (0, 1, 0, 2, 0, 1):
        request = versions[place].score()
        await made.until_started(1)
        if not made.children[0].verdict.done():
            made.children[0].verdict.set_result(OK)
        await request
    first, second, third = (version.number for version in versions)
    assert made.children[0].loaded == [first, second, third, second]
    assert made.children[0].forgotten == [second, third], "those used longest ago"


async def test_versions_that_wait_take_turns() -> None:
    """By the time that each has had: many requests of one do not go before a single one of another."""
    made = Pool(room=1)
    busy, single = made.version(), made.version()
    many = [busy.score() for _ in range(50)]
    await made.until_started(1)
    few = single.score()
    await settled()
    made.children[0].verdict.set_result(OK)
    await asyncio.gather(few, *many)
    assert made.children[0].scored.index(single.number) == 1


async def test_a_worker_that_has_the_version_goes_first(eager: None) -> None:
    made = Pool()
    versions = [made.version() for _ in range(3)]
    requests = [version.score() for version in versions]
    await made.until_started(3)
    for child in made.children:
        child.verdict.set_result(OK)
    await asyncio.gather(*requests)
    for version in reversed(versions):
        await version.score()
    assert [len(child.loaded) for child in made.children] == [1, 1, 1]


async def test_a_request_that_gives_up_its_turn_holds_up_nobody() -> None:
    made = Pool()
    version = made.version()
    first, second, third = (version.score() for _ in range(3))
    await made.until_started(1)
    second.cancel()
    await asyncio.wait((second,))
    made.children[0].verdict.set_result(OK)
    assert list(await asyncio.gather(first, third)) == [OK] * 2


@pytest.mark.parametrize("moment", range(16))
async def test_a_request_may_give_up_at_any_moment(moment: int) -> None:
    """Also in the turn of the loop in which it is its turn."""
    made = Pool()
    version = made.version(most=1)
    first, second, third = (version.score() for _ in range(3))
    await made.until_started(1)
    made.children[0].verdict.set_result(OK)
    for _ in range(moment):
        await asyncio.sleep(0)
    second.cancel()
    async with asyncio.timeout(50):
        while not (first.done() and third.done()):
            for child in made.living:
                if not child.verdict.done():
                    child.verdict.set_result(OK)
            await asyncio.sleep(0)
    assert (await first, await third) == (OK, OK) and made.pool.size == 1


async def test_processes_that_are_not_needed_end(monkeypatch: pytest.MonkeyPatch, eager: None) -> None:
    monkeypatch.setattr(pool, "REST", 0.0)
    made = Pool()
    version = made.version()
    requests = [version.score() for _ in range(3)]
    await made.until_started(3)
    for child in made.children:
        child.verdict.set_result(OK)
    assert await asyncio.gather(*requests) == [OK] * 3
    while len(made.living) > 1:
        await asyncio.sleep(0)
    assert made.pool.size == 1 and not made.pool.further
    await made.pool.settle()
    assert [child.gone for child in made.children] == [child.dead is not None for child in made.children]
    assert await version.score() == OK and len(made.children) == 3


async def test_a_version_that_ends_takes_its_own_along(eager: None) -> None:
    """What others have under way goes on, and their processes only forget it."""
    made = Pool(cores=1)
    ends, stays = made.version(), made.version()
    first = ends.score()
    await made.until_started(1)
    made.children[0].verdict.set_result(OK)
    await first
    beside = stays.score()
    await settled()
    made.children[0].verdict = asyncio.Future()
    assert ends.scoring.pids == [], "it served the other one last"
    under_way = [stays.score(), *(ends.score() for _ in range(3))]
    await made.until_started(2)
    ends.scoring.end("a newer version took its place", cut=True)
    assert {one.status for one in await asyncio.gather(*under_way[1:])} == {"cancelled"}
    assert not under_way[0].done() and made.children[0].forgotten == [ends.number]
    for child in made.living:
        child.verdict.set_result(OK)
    assert (await beside, await under_way[0]) == (OK, OK)
    assert made.living and ends.scoring.pids == [] and stays.scoring.pids == [child.pid for child in made.living]
    stays.scoring.end("a newer version took its place")
    assert not made.living and not made.pool.size, "nobody uses the pool any more"


async def test_an_ended_version_is_in_no_idle_worker() -> None:
    """Also where it could not be loaded."""
    made = Pool()
    made.refuses = lambda child, number: number == broken.number
    broken, other = made.version(), made.version()
    request = other.score()
    await made.until_started(1)
    made.children[0].verdict.set_result(OK)
    await request
    assert (await broken.score()).failure == REFUSED.failure
    assert broken.scoring.pids == [0, 1]
    broken.scoring.end("replaced")
    assert broken.scoring.pids == [] and other.scoring.pids == [0] and made.living == made.children[:1]


async def test_what_died_leaves_the_cores_to_others(eager: None) -> None:
    made = Pool()
    version = made.version(most=5)
    scores = [version.score() for _ in range(5)]
    await made.until_started(5)
    for child in made.children:
        child.die(EpisodeOutcome("timeout", failure=Failure("too late"), died=True))
    assert {outcome.status for outcome in await asyncio.gather(*scores)} == {"timeout"}
    assert made.pool.size == 0 == made.pool.further


async def test_a_request_is_tried_again_when_its_process_died() -> None:
    made = Pool()
    request = made.version().score()
    for count in (1, 2):
        await made.until_started(count)
        made.children[-1].die(DIED)
    outcome = await request
    assert (outcome.status, outcome.failure) == ("error", Failure("killed"))
    assert made.pool.size == 0


async def test_what_dies_beside_others_is_tried_again_alone() -> None:
    """So a version answers for itself: the next process has none of the other's traces."""
    made = Pool(cores=1)
    innocent, other = made.version(), made.version()
    request = other.score()
    await made.until_started(1)
    made.children[0].verdict.set_result(OK)
    await request
    made.children[0].verdict = asyncio.Future()
    again = innocent.score()
    await settled()
    made.children[0].owner.died(Failure("killed"))
    made.children[0].die()
    await made.until_started(2)
    assert [failure.message for failure in innocent.told] == ["its scoring process: killed"] and not other.told
    made.children[1].verdict.set_result(OK)
    assert await again == OK and made.children[1].loaded == [innocent.number]
    assert await other.score() == OK and len(made.children) == 2, "it is shared again"


async def test_what_loads_only_alone_has_workers_of_its_own() -> None:
    made = Pool()
    made.refuses = lambda child, number: child.loaded[0] != number
    first, second = made.version(), made.version()
    for version in (first, second, second, first):
        request = version.score()
        await settled()
        for child in made.living:
            if not child.verdict.done():
                child.verdict.set_result(OK)
        assert await request == OK
    assert [child.scored for child in made.children] == [[first.number] * 2, [second.number] * 2]
    assert len(made.alone) == 1 and second.scoring.pids == [1] and first.scoring.pids == [0]
    second.scoring.end("replaced")
    assert made.living == made.children[:1]


async def test_what_cannot_be_loaded_is_an_error() -> None:
    made = Pool()
    made.refuses = lambda child, number: True
    outcome = await made.version().score()
    assert outcome.failure == Failure("it was registered before") and len(made.children) == 1
    await made.version().score()
    assert len(made.children) == 2, "the other one's attempt may have left traces"


async def test_memory_that_others_took_costs_nobody_a_score() -> None:
    made = Pool(cores=1)
    one, other = made.version(), made.version()
    request = one.score()
    await made.until_started(1)
    made.children[0].verdict.set_result(OK)
    await request
    made.children[0].verdict = asyncio.Future()
    again = other.score()
    await settled()
    made.children[0].full = True
    made.children[0].verdict.set_result(EpisodeOutcome("error", failure=Failure("MemoryError")))
    await made.until_started(2)
    made.children[1].verdict.set_result(OK)
    assert await again == OK and made.children[0].dead == Failure("its memory was full")


async def test_who_leaves_threads_behind_keeps_its_worker() -> None:
    made = Pool(cores=1)
    leaving, other = made.version(), made.version()

    async def scored(version: object, child: int) -> FakeChild:
        request = version.score()  # type: ignore[attr-defined]
        await made.until_started(child + 1)
        if not made.children[child].verdict.done():
            made.children[child].verdict.set_result(OK)
        await request
        return made.children[child]

    request = leaving.score()
    await made.until_started(1)
    made.children[0].left = True
    made.children[0].verdict.set_result(OK)
    assert await request == OK and made.children[0].dead is not None, "nobody else gets it"
    for _ in range(2):
        (await scored(leaving, 1)).left = True
    await scored(other, 2)
    await scored(leaving, 1)
    assert [child.scored for child in made.children] == [[leaving.number], [leaving.number] * 3, [other.number]]
    leaving.scoring.end("replaced")
    assert made.living == made.children[2:]


async def test_what_is_ended_is_not_tried_again() -> None:
    made = Pool()
    version = made.version()
    request = version.score()
    await made.until_started(1)
    version.scoring.end("replaced", cut=True)
    assert (await request).status == "cancelled"
    made.may_start.clear()
    request = version.score()
    await made.until_started(2)
    version.scoring.end("replaced")
    made.may_start.set()
    assert (await request).status == "error"
    assert not made.living and not made.pool.size


async def test_what_waits_when_all_is_ended_starts_nothing() -> None:
    made = Pool()
    version = made.version()
    requests = [version.score() for _ in range(3)]
    await made.until_started(1)
    version.scoring.end("replaced", cut=True)
    assert {outcome.status for outcome in await asyncio.gather(*requests)} == {"cancelled"}
    assert len(made.children) == 1 and not made.pool.size


async def test_what_was_being_started_ends_alone() -> None:
    made = Pool()
    version = made.version()
    made.may_start.clear()
    late = version.score()
    await made.until_started(1)
    version.scoring.end("replaced")
    later = version.score()
    await made.until_started(2)
    made.may_start.set()
    made.children[1].verdict.set_result(OK)
    assert (await late).status == "error" and await later == OK
    assert made.living == made.children[1:] and version.scoring.pids == [1]


async def test_a_request_that_nobody_waits_for_ends_its_process() -> None:
    made = Pool()
    version = made.version()
    request = version.score()
    await made.until_started(1)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    assert not made.living and not made.pool.size
    again = version.score()
    await made.until_started(2)
    made.children[1].verdict.set_result(OK)
    assert await again == OK


async def test_a_process_that_dies_idle_is_replaced() -> None:
    made = Pool()
    version = made.version()
    request = version.score()
    await made.until_started(1)
    made.children[0].verdict.set_result(OK)
    await request
    made.children[0].die()
    made.children[0].owner.died(Failure("killed"))
    assert not made.pool.size and len(version.told) == 1
    again = version.score()
    await made.until_started(2)
    made.children[1].verdict.set_result(OK)
    assert await again == OK


async def test_a_process_that_cannot_start_is_an_error() -> None:
    made = Pool()
    made.broken = BrokenPlugin(Failure("no module", "p.py", 1))
    outcome = await made.version().score()
    assert (outcome.status, outcome.failure) == ("error", Failure("no module", "p.py", 1))
    assert not made.pool.size
