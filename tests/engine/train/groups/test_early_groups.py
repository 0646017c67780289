"""A policy's group closes once its agents are done, whatever the others of the play still do, and stays."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from marlaas.engine.environments.protocol import Answering, EpisodeOutcome, EpisodeSpec, FinalReward, FinishedEpisode
from marlaas.engine.queue.scheduler.scheduler import Ending
from marlaas.engine.spec.task import NamedPolicySpec, TaskSpec
from marlaas.engine.train.failures import BiasWatch
from marlaas.engine.trajectories import Failure
from marlaas.plugins.messages import Answer
from tests.oracle.audit import audit

from ...queue.scheduler.fake_environments import FakeEnvironments
from ...queue.scheduler.world import World
from ..test_several_policies import AGENTS, SPEC, STEPS, consumed, steps, world

TWO = replace(SPEC, policies=dict.fromkeys(AGENTS, NamedPolicySpec(rank=1, alpha=1.0)))
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


async def test_the_first_final_reward_of_a_member_counts(tmp_path: Path) -> None:
    """A member fails once after the solver was paid; what is said when it is played again is not trained on."""
    plays: Counter[tuple[int, int]] = Counter()

    def breaks(spec: EpisodeSpec) -> bool:
        plays[spec.index, spec.member] += 1
        return plays[spec.index, spec.member] == 1 and spec.member == 1

    here, _ = paying(tmp_path, breaks=breaks)
    assert await here.go() == Ending("done")
    assert consumed(here) == {"solver": ONCE, "critic": ONCE}
    assert {row["instance"] for row in groups(here, "critic")} == set(range(2 * STEPS)), "no draw was given up"
    assert {row["replayed"] for row in groups(here, "critic")} == {1}


@pytest.mark.parametrize("constant", [True, False])
async def test_a_play_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path, constant: bool) -> None:
    """With dynamic sampling a group of equal rewards waits for the others; one with a signal does not."""
    over = asyncio.Event()
    spec = replace(TWO, train=replace(TWO.train, dynamic_sampling=True, dynamic_limit=1))
    here, environment = paying(tmp_path, spec=spec, pause=lambda spec: over)
    if constant:
        here.environments = Equal(here.chance, agents=AGENTS, pause=environment.pause)
    run = asyncio.ensure_future(here.go())
    await until(lambda: steps(here).get("solver") or len(here.environments.begun) == 8)
    for _ in range(200):
        await asyncio.sleep(0)
    assert bool(groups(here, "solver")) is not constant
    over.set()
    assert await run == Ending("done")
    assert consumed(here) == {"solver": ONCE, "critic": ONCE}
    assert {row["replaced"] for row in groups(here, "solver")} == {int(constant)}


class Equal(Paying):
    """All members are paid alike."""

    async def play(self, lease: Any, spec: EpisodeSpec, answer: Answer, counts: bool = False) -> EpisodeOutcome:
        if spec.split == "train":
            self.begun.append(spec)
        for agent in AGENTS:
            await answer(self.ask_for(spec, 0, agent))
            if agent == "solver" and isinstance(answer, Answering):
                answer.settle(FinalReward("solver", 0.5))
                if spec.split == "train" and (event := self.pause(spec)) is not None:
                    await event.wait()
        return EpisodeOutcome("ok", dict.fromkeys(AGENTS, 0.5))


async def test_a_play_that_teaches_nobody_any_more_is_ended(tmp_path: Path) -> None:
    """The critic is frozen: nobody waits for what it says when the solver is done."""
    policies = {"solver": NamedPolicySpec(rank=1), "critic": NamedPolicySpec(frozen="base")}
    here, environment = paying(tmp_path, spec=replace(TWO, policies=policies), pause=lambda spec: asyncio.Event())
    assert await asyncio.wait_for(here.go(), 50) == Ending("done")
    assert consumed(here) == {"solver": ONCE} and here.query("SELECT 1 FROM open_plays") == []
    assert len(environment.begun) == 2 * 2 * STEPS


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


async def test_an_agent_that_is_done_is_not_asked_again(tmp_path: Path) -> None:
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
        SPEC, policies={"player": NamedPolicySpec(rank=1)}, agents=dict.fromkeys(AGENTS, "player")
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
