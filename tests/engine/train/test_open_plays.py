"""Samples that have ended outlive their engine, and a policy's group closes once its agents are done."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from marlaas.engine.environments.protocol import (
    Answering,
    DataFacts,
    EpisodeOutcome,
    EpisodeSpec,
    FinalReward,
    FinishedEpisode,
    Ranking,
)
from marlaas.engine.queue.scheduler.scheduler import Ending
from marlaas.engine.spec.task import NamedPolicySpec, PolicySpec, TaskSpec
from marlaas.engine.train import failures, groups as module, publishing
from marlaas.engine.train.failures import BiasWatch
from marlaas.engine.trajectories import Failure
from marlaas.plugins.messages import Answer
from tests.oracle.audit import audit

from ..queue.scheduler.fake_environments import FakeEnvironments
from ..queue.scheduler.world import World
from .test_drawing import DIFFICULT, drawn, score
from .test_learning import SPEC, check_history
from .test_several_policies import AGENTS, SPEC as SPECOfEarlyGroups, STEPS, consumed, steps, world

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
    assert here.query("SELECT 1 FROM open_plays") == [], "and keep nothing once the task has ended"


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


TWO = replace(SPECOfEarlyGroups, policies=dict.fromkeys(AGENTS, NamedPolicySpec(rank=1, alpha=1.0)))
ONCE = Counter({(number, number // 2 + 1): 1 for number in range(2 * STEPS)})


@dataclass
class Paying(FakeEnvironments):
    """The solver speaks first and is done then; the critic speaks after ``pause``. ``breaks``: it fails in between."""

    pause: Callable[[EpisodeSpec], asyncio.Event | None] = lambda spec: None
    breaks: Callable[[EpisodeSpec], bool] = lambda spec: False

    async def play(self, lease: Any, spec: EpisodeSpec, answer: Answer, counts: bool = False) -> EpisodeOutcome:
        if spec.split == "train":
            self.begun.append(spec)
        await self.chance.wait()
        said = (await answer(self.ask_for(spec, 0, "solver"))).text
        rewards = {"solver": float(spec.member), "critic": float(sum(map(ord, said)) % 2)}
        if isinstance(answer, Answering):  # else a constant answer is measured
            answer.settle(FinalReward("solver", rewards["solver"]))
        if spec.split == "train" and (event := self.pause(spec)) is not None:
            await event.wait()
        if spec.split == "train" and self.breaks(spec):
            return EpisodeOutcome("error", failure=Failure("it broke", "env.py", 3))
        await answer(self.ask_for(spec, 0, "critic"))
        return EpisodeOutcome("ok", rewards)


def paying(tmp_path: Path, **options: Any) -> tuple[World, Paying]:
    here = world(tmp_path, options.pop("spec", TWO))
    here.environments = environment = Paying(here.chance, agents=AGENTS, **options)
    return here, environment


async def until(there: Callable[[], object]) -> None:
    """Let the event loop turn until something is so, in the test's time limit."""
    async with asyncio.timeout(50):
        while not there():
            await asyncio.sleep(0)


def groups(here: World, policy: str) -> list[dict[str, Any]]:
    sql = f"SELECT g.* FROM groups g JOIN policies p ON p.id = g.policy WHERE p.name = '{policy}' AND g.split = 'train'"
    return here.query(f"{sql} ORDER BY g.number")


async def test_a_policy_learns_while_its_partner_still_plays(tmp_path: Path) -> None:
    over = asyncio.Event()
    here, _ = paying(tmp_path, pause=lambda spec: over)
    run = asyncio.ensure_future(here.go())
    await until(lambda: steps(here).get("solver"))
    assert groups(here, "critic") == [] and steps(here)["critic"] == 0
    assert {row["state"] for row in groups(here, "solver")[:2]} == {"consumed"}
    over.set()
    assert await run == Ending("done")
    assert consumed(here) == {"solver": ONCE, "critic": ONCE}
    here.store.tasks.set_state(here.task, "done")
    report = audit(here.home.root, updates=False)
    assert report.problems == [] and report.proven["plays are one"] == 2 * STEPS
    plays = here.query("SELECT count(*) AS n FROM groups WHERE split = 'train' GROUP BY coalesce(play, id)")
    assert {row["n"] for row in plays} == {2}, "both groups of a play say that they are one"


async def test_a_final_reward_stands_where_the_episode_fails(tmp_path: Path) -> None:
    """The critic's group is filled from another instance; the solver keeps what it was paid, once."""
    here, environment = paying(tmp_path, breaks=lambda spec: spec.index == 0)
    assert await here.go() == Ending("done")
    assert consumed(here) == {"solver": ONCE, "critic": ONCE}
    first = {name: groups(here, name)[0] for name in AGENTS}
    assert first["solver"]["instance"] == 0 and first["critic"]["instance"] == 1_000_003
    assert sum(spec.index == 0 for spec in environment.begun) == 2 * 3, "members are played again as ever"
    rows = here.query(f'SELECT agent, status, reward FROM trajectories WHERE "group" = {first["solver"]["id"]}')
    assert [(row["agent"], row["status"], row["reward"]) for row in rows if row["agent"] == "solver"] == [
        ("solver", "ok", 0.0),
        ("solver", "ok", 1.0),
    ]
    here.store.tasks.set_state(here.task, "done")
    assert audit(here.home.root, updates=False).problems == []


async def test_a_play_is_closed_with_its_last_group(tmp_path: Path) -> None:
    """Its members may take their time to end: an engine that dies meanwhile leaves nothing open."""
    open_plays: list[list[dict[str, Any]]] = []

    class Leaving(Paying):
        async def play(self, lease: Any, spec: EpisodeSpec, answer: Answer, counts: bool = False) -> EpisodeOutcome:
            try:
                return await super().play(lease, spec, answer, counts)
            except asyncio.CancelledError:
                open_plays.append(here.query(f"SELECT 1 FROM open_plays WHERE number = {spec.index}"))
                raise

    policies = {"solver": NamedPolicySpec(rank=1), "critic": NamedPolicySpec(frozen="base")}
    here, _ = paying(tmp_path, spec=replace(TWO, policies=policies))
    here.environments = Leaving(here.chance, agents=AGENTS, pause=lambda spec: asyncio.Event())
    assert await asyncio.wait_for(here.go(), 50) == Ending("done")
    assert len(open_plays) == 2 * 2 * STEPS and not any(open_plays)


@pytest.mark.parametrize("partner", [NamedPolicySpec(frozen="base"), NamedPolicySpec(rank=1)])
async def test_members_that_failed_are_counted_in_early_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partner: NamedPolicySpec
) -> None:
    """One member always fails before the solver is paid, and the others play on when its group closes."""
    over, weighed = asyncio.Event(), Counter[tuple[str, ...]]()

    class Failing(Paying):
        async def play(self, lease: Any, spec: EpisodeSpec, answer: Answer, counts: bool = False) -> EpisodeOutcome:
            if spec.split == "train" and spec.member == 2:
                return EpisodeOutcome("error", failure=Failure("it broke", "env.py", 3))
            return await super().play(lease, spec, answer, counts)

    def see(watch: BiasWatch, version: str, members: Sequence[FinishedEpisode], component: str = "") -> None:
        weighed[tuple(member.outcome.status for member in members)] += 1

    monkeypatch.setattr(BiasWatch, "see", see)
    policies = {"solver": NamedPolicySpec(rank=1), "critic": partner}
    train = replace(TWO.train, group_size=3, min_members=2)
    here, _ = paying(tmp_path, spec=replace(TWO, policies=policies, train=train))
    here.environments = Failing(here.chance, agents=AGENTS, pause=lambda spec: over)
    run = asyncio.ensure_future(here.go())
    await until(lambda: steps(here).get("solver"))
    over.set()
    assert await asyncio.wait_for(run, 50) == Ending("done")
    assert {(row["lost"], row["replayed"]) for row in groups(here, "solver")} == {(1, 2)}
    assert weighed.keys() == {("ok", "ok", "error")} and weighed.total() == 2 * STEPS


async def test_an_agent_that_is_done_is_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "MOST_LOST", failures.FEWEST_LOST)

    class Insists(Paying):
        async def play(self, lease: Any, spec: EpisodeSpec, answer: Answer, counts: bool = False) -> EpisodeOutcome:
            outcome = await super().play(lease, spec, answer, counts)
            await answer(self.ask_for(spec, 1, "solver"))
            return outcome

    here, _ = paying(tmp_path)
    here.environments = Insists(here.chance, agents=AGENTS)
    ending = await here.go()
    assert ending.state == "paused" and "asked the agent 'solver', whose reward is final" in ending.reason.words


WAITING = {
    "two agents of one policy": replace(
        SPECOfEarlyGroups, policies={"player": NamedPolicySpec(rank=1)}, agents=dict.fromkeys(AGENTS, "player")
    ),
    "deterministic": replace(TWO, train=replace(TWO.train, deterministic=True, max_staleness=0)),
}


@pytest.mark.parametrize("spec", WAITING.values(), ids=WAITING)
async def test_some_groups_close_when_the_play_is_over(tmp_path: Path, spec: TaskSpec) -> None:
    """Where another agent of the policy goes on, and in deterministic tasks."""
    over = asyncio.Event()
    here, environment = paying(tmp_path, spec=spec, pause=lambda spec: over)
    run = asyncio.ensure_future(here.go())
    most = 2 * 2 * (spec.train.max_staleness + 1)
    await until(lambda: len(environment.begun) == most)
    for _ in range(200):
        await asyncio.sleep(0)
    assert here.query("SELECT 1 FROM groups WHERE split = 'train'") == []
    over.set()
    assert await run == Ending("done")
