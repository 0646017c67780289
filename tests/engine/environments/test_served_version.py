"""How long a replaced version may go on, and what becomes of what it is still playing."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from marlaas.engine.environments import served_version as draining
from marlaas.engine.environments.nodes.remote import Reach
from marlaas.engine.environments.pool import ProcessBudget
from marlaas.engine.environments.process.launch import Folders
from marlaas.engine.environments.protocol import EpisodeOutcome, Ranking
from marlaas.engine.environments.served_version import LONGEST, SHORTEST, ServedVersion
from marlaas.engine.trajectories import Failure

from .conftest import ECHO, Slow, World, a_spec, echoing, under_way

WORSE = ECHO.replace("reply.text == word", "0.25")


@pytest.mark.parametrize(
    ("seconds", "grace"), [([], SHORTEST), ([1.0] * 50, SHORTEST), ([20.0] * 50, 60.0), ([1e300], LONGEST)]
)
async def test_the_grace_follows_from_what_episodes_take(seconds: list[float], grace: float) -> None:
    folders = Folders(Path("work"), Path("log"))
    version = ServedVersion("v", Path("p.py"), folders, lambda *told: None, ProcessBudget(), Reach())
    version._seconds.extend(seconds)
    version.hold(by_version=False)
    version.retire()
    assert version.grace == grace
    version.promote()


@dataclass
class Scorer:
    """A scoring process that dies; or one that works."""

    lost: bool = False
    dead: bool = True
    full: bool = False

    async def rank(self, *_: object) -> Ranking | EpisodeOutcome:
        return EpisodeOutcome("error", failure=Failure("it died")) if self.dead else Ranking(({"agent": 1.0},))


class Scorers:
    """Hands out these processes in turn, in place of a pool."""

    ends = 0

    def __init__(self, *scorers: Scorer) -> None:
        self._scorers = iter(scorers)

    def take(self) -> SimpleNamespace:
        return SimpleNamespace(child=next(self._scorers))

    def leave(self, worker: SimpleNamespace) -> None:
        pass


@pytest.mark.parametrize(("lost", "died", "ranked"), [(0, 1, True), (0, 2, False), (5, 1, True), (5, 2, False)])
async def test_a_score_is_tried_on_two_nodes_that_are_lost(
    lost: int, died: int, ranked: bool
) -> None:
    version = ServedVersion(
        "v", Path("p.py"), Folders(Path("work"), Path("log")), lambda *told: None, ProcessBudget(), Reach()
    )
    version.environments["e"] = SimpleNamespace(name="e", score_timeout=1.0)  # type: ignore[assignment]
    scorers = [*[Scorer(lost=True)] * lost, *[Scorer()] * died, Scorer(dead=False)]
    version._scoring = Scorers(*scorers)  # type: ignore[assignment]
    assert isinstance(await version.rank("e", ()), Ranking) is ranked


async def replaced(world: World) -> None:
    """A newer version of echo serves."""
    await world.until("loaded", "echo")
    world.save("echo.py", WORSE)
    await world.until("loaded", "echo")


@pytest.fixture
async def served(world: World) -> World:
    world.save("echo.py", ECHO)
    await world.service.start()
    return world


@pytest.mark.processes
async def test_after_its_grace_a_replaced_version_is_cut_off(served: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "SHORTEST", 0.0)
    lease = await served.service.bind("echo")
    episode = await under_way(served, lease, Slow())
    assert not lease.cut
    await replaced(served)
    outcome = await episode
    assert (outcome.status, outcome.rewards) == ("cancelled", {}) and lease.cut
    assert outcome.failure is not None and "newer version" in outcome.failure.message
    late = await served.service.play(lease, a_spec(), echoing)
    assert late.status == "cancelled", "nothing brings the process back for this group"
    await lease.serving.settle()
    assert lease.serving.pid is None and len(served.pids()) == 1
    lease.release()
    assert (await served.play("echo")).rewards == {"agent": 0.25}


@pytest.mark.processes
async def test_waiting_for_a_replaced_version_says_how_long(served: World) -> None:
    model = Slow()
    lease = await served.service.bind("echo")
    pinned = await served.service.bind("echo", lease.environment_version)
    episode = await under_way(served, lease, model)
    assert lease.ends == ""
    await replaced(served)
    assert lease.ends == (
        f"waits for episodes on version {lease.environment_version[:8]} of echo/echo, which was replaced;"
        f" what takes longer than {SHORTEST:.0f} s from then on is cut off"
    )
    assert pinned.ends == "", "it is there for as long as it is wanted"
    model.go.set()
    await episode
    for held in (lease, pinned):
        held.release()


@pytest.mark.processes
async def test_who_bound_a_version_by_its_name_is_not_cut_off(served: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "SHORTEST", 0.0)
    model = Slow()
    lease = await served.service.bind("echo", served.service.resolve("echo").version)
    episode = await under_way(served, lease, model)
    await replaced(served)
    model.go.set()
    assert (await episode).rewards == {"agent": 1.0} and not lease.cut
    lease.release()
    await lease.serving.settle()
    assert lease.serving.pid is None


@pytest.mark.processes
async def test_a_group_that_was_cut_off_stays_cut(served: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "SHORTEST", 0.0)
    lease = await served.service.bind("echo")
    episode = await under_way(served, lease, Slow())
    await replaced(served)
    assert (await episode).status == "cancelled"
    with await served.service.bind("echo", lease.environment_version) as other:
        assert lease.cut and not other.cut, "one of its episodes is lost, so the group is no whole one"
        assert (await served.service.play(other, a_spec(word="x"), echoing)).rewards == {"agent": 1.0}
    lease.release()
    await lease.serving.settle()


@pytest.mark.processes
async def test_an_edit_that_is_taken_back_ends_the_grace(served: World) -> None:
    model = Slow()
    lease = await served.service.bind("echo")
    episode = await under_way(served, lease, model)
    await replaced(served)
    served.save("echo.py", ECHO)
    assert (await served.until("loaded", "echo")).version == lease.environment_version
    lease.serving.expire()  # as a timer would that was not stopped
    model.go.set()
    assert (await episode).rewards == {"agent": 1.0} and not lease.cut
    lease.release()
    assert lease.serving.pid is not None


@pytest.mark.processes
async def test_a_group_keeps_its_version_when_its_process_dies(served: World) -> None:
    lease = await served.service.bind("echo")
    first = await served.service.play(lease, a_spec(word="x"), echoing)
    await replaced(served)
    assert lease.serving.pid is not None
    os.kill(lease.serving.pid, signal.SIGKILL)
    await served.until("restarted", "echo")
    second = await served.service.play(lease, a_spec(word="x"), echoing)
    assert first.rewards == second.rewards == {"agent": 1.0}, "the newer one would pay 0.25"
    lease.release()
    await lease.serving.settle()
