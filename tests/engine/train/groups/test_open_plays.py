"""Members that have ended outlive their engine: the next one plays only those that are missing."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from marlaas.engine.environments.protocol import DataFacts, EpisodeOutcome, EpisodeSpec, Ranking
from marlaas.engine.queue.scheduler.scheduler import Ending
from marlaas.engine.spec.task import PolicySpec, TaskSpec
from marlaas.engine.store.experience import OpenPlay
from marlaas.engine.train import groups as module, publishing
from marlaas.plugins.messages import Answer
from tests.oracle.audit import audit

from ...queue.scheduler.fake_environments import FakeEnvironments
from ...queue.scheduler.world import World
from ..test_curriculum import DIFFICULT, drawn, score
from ..test_learning import SPEC, check_history
from ..test_several_policies import AGENTS, consumed
from .test_early_groups import TWO, Paying, groups, until

FIRST = {(0, 0), (0, 1)}
SOLO = replace(SPEC, policy=PolicySpec(rank=1, alpha=1.0))


@dataclass
class Held(FakeEnvironments):
    """Some members wait before their first question."""

    holds: Callable[[EpisodeSpec], bool] = lambda spec: False
    over: asyncio.Event = field(default_factory=asyncio.Event)
    well: int = 0
    """Training episodes that have ended."""

    async def play(self, lease: Any, spec: EpisodeSpec, answer: Answer, counts: bool = False) -> EpisodeOutcome:
        if spec.split == "train" and self.holds(spec):
            self.begun.append(spec)
            await self.over.wait()
        outcome = await super().play(lease, spec, answer, counts)
        self.well += spec.split == "train"
        return replace(outcome, metrics={"place": float(spec.member), "word": "x"}, seconds=0.25)


def held(
    tmp_path: Path,
    holds: Callable[[EpisodeSpec], bool],
    spec: TaskSpec = SOLO,
) -> World:
    here = World(tmp_path / "home", spec)
    here.environments = Held(here.chance, holds=holds)
    return here


def environment(here: World) -> Held:
    """That of a world that ``held`` made."""
    return cast(Held, here.environments)


def kept(here: World) -> list[tuple[int, int]]:
    """Number and member of all that is kept."""
    sql = "SELECT DISTINCT p.number, t.member FROM open_trajectories t JOIN open_plays p ON p.id = t.play ORDER BY 1, 2"
    return [(row["number"], row["member"]) for row in here.query(sql)]


def begun(here: World) -> Counter[tuple[int, int]]:
    return Counter((spec.index, spec.member) for spec in here.environments.begun)


async def dies(here: World, when: Callable[[], object]) -> None:
    """Run until something is so; then the engine is gone."""
    run = asyncio.ensure_future(here.go())
    await until(when)
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    here.environments.begun.clear()
    here.restart()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEEP_AFTER", 0.0)


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the end of a run stores members."""
    monkeypatch.setattr(module, "KEEP_AFTER", 1e6)


@pytest.mark.usefixtures("at_once")
async def test_only_missing_members_are_played_by_the_next_engine(tmp_path: Path) -> None:
    here = held(tmp_path, lambda spec: (spec.index, spec.member) == (0, 1))
    await dies(here, lambda: (0, 0) in kept(here))
    environment(here).holds = lambda spec: False
    before = here.query("SELECT tokens FROM open_trajectories t JOIN open_plays p ON p.id = t.play WHERE number = 0")
    assert await here.go() == Ending("done")
    assert begun(here)[0, 0] == 0 and begun(here)[0, 1] == 1
    check_history(here)
    assert kept(here) == [] and here.query("SELECT 1 FROM open_plays") == []
    rows = here.query(
        "SELECT t.* FROM trajectories t JOIN groups g ON g.id = t.\"group\" WHERE g.number = 0 AND g.split = 'train'"
        " ORDER BY t.member"
    )
    assert rows[0]["tokens"] == before[0]["tokens"] and [row["member"] for row in rows][:2] == [0, 1]
    assert [json.loads(row["metrics"]) for row in rows] == [
        {"place": float(row["member"]), "word": "x"} for row in rows
    ], "what was logged is kept, too"
    assert {row["seconds"] for row in rows} == {0.25} and all(row["turns"] != "[]" for row in rows)


@pytest.mark.usefixtures("never")
async def test_a_run_that_ends_stores_what_it_has(tmp_path: Path) -> None:
    here = held(tmp_path, lambda spec: spec.member == 1)
    await dies(here, lambda: environment(here).well >= 4)
    assert {member for _, member in kept(here)} == {0}
    report = audit(here.home.root, updates=False)
    assert report.problems == [] and report.proven["open plays are open"] > 0
    environment(here).over.set()
    assert await here.go() == Ending("done")
    check_history(here)


@pytest.mark.usefixtures("never")
async def test_plays_that_are_soon_over_write_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = held(tmp_path, lambda spec: False)
    monkeypatch.setattr(here.store.open_plays, "keep", lambda *given: pytest.fail("it was kept"))
    assert await here.go() == Ending("done")
    check_history(here)


@pytest.mark.usefixtures("at_once")
async def test_another_version_of_the_environment_plays_all_anew(tmp_path: Path) -> None:
    here = held(tmp_path, lambda spec: (spec.index, spec.member) == (0, 1))
    await dies(here, lambda: (0, 0) in kept(here))
    environment(here).holds, here.environments.version = lambda spec: False, "e2"
    assert await here.go() == Ending("done")
    assert begun(here)[0, 0] == 1
    check_history(here)
    assert here.query("SELECT 1 FROM open_plays") == []


@pytest.mark.usefixtures("at_once")
async def test_a_ranking_compares_members_of_both_engines(tmp_path: Path) -> None:
    compared: list[list[str]] = []

    def ranking(members: Sequence[EpisodeOutcome]) -> Ranking:
        compared.append([member.metrics["word"] for member in members if isinstance(member.metrics["word"], str)])
        return Ranking(tuple({"agent": float(place)} for place, _ in enumerate(members)))

    here = held(tmp_path, lambda spec: (spec.index, spec.member) == (0, 1))
    here.environments.ranking = ranking
    await dies(here, lambda: (0, 0) in kept(here))
    environment(here).holds = lambda spec: False
    assert await here.go() == Ending("done")
    assert begun(here)[0, 0] == 0 and ["x", "x"] in compared
    check_history(here)
    rewards = here.query(
        "SELECT t.reward FROM trajectories t JOIN groups g ON g.id = t.\"group\" WHERE g.split = 'train'"
        " AND g.number = 0 ORDER BY t.member"
    )
    assert [row["reward"] for row in rewards] == [0.0, 1.0]


Retained = list[tuple[int, int]]


@pytest.fixture
def retained(monkeypatch: pytest.MonkeyPatch) -> Retained:
    """Policy and newest version, whenever retention has removed what nobody needs; it does so after each step."""
    done: Retained = []
    retain = publishing.Retention.retain

    async def noted(self: publishing.Retention, pending: Set[int]) -> None:
        newest = self._store.versions.candidates(self._policy)[0].number
        await retain(self, pending)
        done.append((self._policy, newest))

    monkeypatch.setattr(publishing, "INTERVAL", 0.0)
    monkeypatch.setattr(publishing.Retention, "retain", noted)
    return done


def late(spec: EpisodeSpec) -> bool:
    """A member of the first group that may begin before the first step, and belongs to the second."""
    return (spec.index, spec.member) == (SPEC.train.groups_per_step, 1)


@pytest.mark.usefixtures("at_once")
async def test_a_play_goes_on_with_the_version_that_it_began_with(tmp_path: Path) -> None:
    here = held(tmp_path, late)
    number = SPEC.train.groups_per_step
    await dies(here, lambda: (number, 0) in kept(here) and here.query("SELECT 1 FROM steps"))
    environment(here).holds = lambda spec: False
    assert await here.go() == Ending("done")
    assert begun(here)[number, 0] == 0
    (group,) = here.query(f"SELECT version FROM groups WHERE number = {number} AND split = 'train'")
    assert group["version"] == 0
    check_history(here)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("fate", ["void", "pruned"])
async def test_members_of_a_version_that_is_gone_go_with_it(tmp_path: Path, fate: str) -> None:
    here = held(tmp_path, lambda spec: spec.index >= 2 * SPEC.train.groups_per_step and spec.member == 1)
    number = 2 * SPEC.train.groups_per_step
    await dies(here, lambda: (number, 0) in kept(here))
    spoke = {row["speaking"] for row in here.query("SELECT speaking FROM open_plays")}
    assert spoke
    execute = here.store._database.conn.execute
    if fate == "void":  # and other versions take their numbers
        for version in here.store.versions.candidates(1):
            Path(version.path).write_bytes(b"damaged")
        execute("DELETE FROM trajectories")
        execute("DELETE FROM groups")
        here.environments.score = lambda spec: float(spec.member)
    if fate == "pruned":
        execute("UPDATE open_plays SET speaking = replace(speaking, ', \"', ', \"other')")
    environment(here).holds = lambda spec: False
    here.environments.begun.clear()
    assert await here.go() == Ending("done")
    assert begun(here)[number, 0] == 1
    check_history(here)
    assert here.query("SELECT 1 FROM open_plays") == []


@pytest.mark.usefixtures("at_once")
async def test_a_group_that_was_stored_early_is_not_played_again(tmp_path: Path) -> None:
    """The solver's group was stored early; the next engine plays what is missing for the critic alone."""
    over = asyncio.Event()
    here = World(tmp_path / "home", TWO)
    here.environments = Paying(
        here.chance, agents=AGENTS, pause=lambda spec: over if (spec.index, spec.member) == (0, 1) else None
    )
    await dies(here, lambda: (0, 0) in kept(here) and groups(here, "solver"))
    assert groups(here, "solver")[0]["number"] == 0
    assert 0 not in [row["number"] for row in groups(here, "critic")]
    assert audit(here.home.root, updates=False).problems == []
    over.set()
    assert await here.go() == Ending("done")
    assert begun(here)[0, 0] == 0 and begun(here)[0, 1] == 1
    once = Counter({(number, number // 2 + 1): 1 for number in range(2 * TWO.steps)})
    assert consumed(here) == {"solver": once, "critic": once}
    here.store.tasks.set_state(here.task, "done")
    assert audit(here.home.root, updates=False).problems == []
    (first,) = [row for row in groups(here, "critic") if row["number"] == 0]
    said = here.query(f'SELECT DISTINCT agent, speaker FROM trajectories WHERE "group" = {first["id"]}')
    assert {(row["agent"], row["speaker"]) for row in said} == {("critic", ""), ("solver", "solver")}


@pytest.mark.usefixtures("at_once")
async def test_a_version_stays_until_it_is_loaded_again(tmp_path: Path, retained: Retained) -> None:
    """The solver goes two steps ahead while its version 0 is on its way back to the sampler, for the critic's sake."""
    over = asyncio.Event()
    here = World(tmp_path / "home", TWO)
    here.environments = Paying(
        here.chance, agents=AGENTS, pause=lambda spec: over if (spec.index, spec.member) == (0, 1) else None
    )
    await dies(here, lambda: (0, 0) in kept(here) and groups(here, "solver"))
    over.set()
    sampler, load = here.workers.sampler, here.workers.sampler.load

    async def late_load(version: str, path: str) -> str:
        if "solver-v0" in version:
            await until(lambda: (1, 2) in retained)
        return await load(version, path)

    sampler.load = late_load  # type: ignore[method-assign]
    assert await here.go() == Ending("done")
    assert begun(here)[0, 0] == 0 and begun(here)[0, 1] == 1
    assert here.query("SELECT 1 FROM versions WHERE number = 0 AND state = 'committed'") == []


AHEAD = replace(SOLO, train=replace(SPEC.train, max_staleness=2), eval=replace(SPEC.eval, every=0))


def oldest(spec: EpisodeSpec) -> bool:
    """A member of a group that may begin with version 0 and belongs to the third step."""
    return (spec.index, spec.member) == (2 * SPEC.train.groups_per_step, 1)


@pytest.mark.usefixtures("at_once")
async def test_the_versions_of_open_plays_outlive_the_engine(tmp_path: Path) -> None:
    here = held(tmp_path, oldest, AHEAD)
    number = 2 * SPEC.train.groups_per_step
    await dies(here, lambda: (number, 0) in kept(here) and here.query("SELECT 1 FROM steps WHERE number = 2"))
    (play,) = here.query(f"SELECT speaking FROM open_plays WHERE number = {number}")
    assert json.loads(play["speaking"])["policy"][0] == 0
    await publishing.Retention(here.store, here.task, 1).retain(set())
    environment(here).holds = lambda spec: False
    assert await here.go() == Ending("done")
    assert begun(here)[number, 0] == 0 and begun(here)[number, 1] == 1
    check_history(here)


async def test_a_task_that_ends_keeps_no_version_for_them(tmp_path: Path) -> None:
    """Such as where it ends before the step of a play that is still open."""
    here = World(tmp_path / "home", SPEC)

    def begun_before(_: object) -> None:
        (first,) = here.query("SELECT checksum FROM versions")
        play = OpenPlay(here.task, 99, ("policy",), 0, 99, "", "e1", {"policy": (0, first["checksum"])})
        here.store.open_plays.keep(play, [])

    assert await here.go(begun_before) == Ending("done")
    assert here.query("SELECT 1 FROM open_plays") == []
    (first,) = here.query("SELECT state, path FROM versions WHERE number = 0")
    assert first["state"] == "pruned" and not here.home.file(first["path"]).exists()


@pytest.mark.usefixtures("at_once")
async def test_a_play_for_one_gives_way_to_a_play_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The solver had gone on alone, and the engine died; the next one plays the number for both at once."""
    over = asyncio.Event()
    here = World(tmp_path / "home", TWO)
    here.environments = Paying(here.chance, agents=AGENTS, pause=lambda spec: over if spec.member else None)

    trainer = here.workers.trainer
    accumulate = trainer.accumulate

    async def held(policy: str, groups: tuple[Any, ...], probe: Any = None, path: str = "") -> Any:
        if path:  # a step: the solver still needs the number when the engine dies
            await asyncio.Event().wait()
        return await accumulate(policy, groups, probe)

    monkeypatch.setattr(trainer, "accumulate", held)
    await dies(here, lambda: (1, 0) in kept(here))
    execute = here.store._database.conn.execute
    execute("DELETE FROM trajectories")
    execute("DELETE FROM groups")
    execute("UPDATE open_plays SET policies = json_array('solver') WHERE number = 1")
    over.set()
    assert await here.go() == Ending("done")
    assert here.query("SELECT 1 FROM open_plays") == []
    assert audit(here.home.root, updates=False).problems == []


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("state", ["cancelled", "failed", "done", "paused"])
async def test_a_finished_task_keeps_nothing_of_open_plays(tmp_path: Path, state: str) -> None:
    here = held(tmp_path, lambda spec: spec.member == 1)
    await dies(here, lambda: kept(here))
    here.store.tasks.set_state(here.task, state)
    assert bool(here.query("SELECT 1 FROM open_plays")) is bool(kept(here)) is (state == "paused")


async def drawn_with(root: Path, dying: bool) -> list[tuple[int, ...]]:
    """What a curriculum drew; ``dying``: the engine dies while the first play is open."""
    here = World(root, DIFFICULT)
    here.environments = Held(here.chance, data=DataFacts(train=10, held_out=4), score=score)
    if dying:
        environment(here).holds = lambda spec: (spec.index, spec.member) == (0, 1)
        await dies(here, lambda: (0, 0) in kept(here))
        environment(here).holds = lambda spec: False
    assert await here.go() == Ending("done")
    return drawn(here)


@pytest.mark.usefixtures("at_once")
async def test_a_curriculum_knows_what_a_kept_play_drew(tmp_path: Path) -> None:
    """What it draws and stores is the same whether the first play was made in one go or by two engines."""
    assert await drawn_with(tmp_path / "whole", False) == await drawn_with(tmp_path / "killed", True)


@pytest.mark.usefixtures("at_once")
async def test_a_member_that_was_kept_took_as_long_as_it_took(tmp_path: Path) -> None:
    """Else it would be among the faster ones of its group, whatever it took, where members are redundant."""
    here = held(tmp_path, lambda spec: (spec.index, spec.member) == (0, 1))
    await dies(here, lambda: (0, 0) in kept(here))
    play = here.store.open_plays.find(here.task, 0, ["policy"])
    assert play is not None
    (stored,) = here.store.open_plays.members(play)
    assert stored.seconds > 0.0
