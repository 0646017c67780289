"""Tasks of several policies where something is missing, ends early, or is lent by another task."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from marlaas.engine.adapters.export import write_peft_folder
from marlaas.engine.adapters.statefile import read_state
from marlaas.engine.environments.protocol import EpisodeOutcome, EpisodeSpec
from marlaas.engine.errors import AdapterError, ConfigError
from marlaas.engine.queue.scheduler.commands import delete_versions, extend, roll_back
from marlaas.engine.queue.scheduler.scheduler import Ending
from marlaas.engine.queue.submission.references import find_starts
from marlaas.engine.queue.submission.taskfile import submission
from marlaas.engine.spec.task import EvalSpec, KeepSpec, NamedPolicySpec, TaskSpec
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.submissions import submit
from marlaas.engine.train.publishing import Retention
from marlaas.plugins.messages import Answer

from ..queue.scheduler.fake_environments import FakeEnvironments
from ..queue.scheduler.world import World
from .test_several_policies import AGENTS, SPEC, STEPS, Quiet, steps, world

ONE = NamedPolicySpec(rank=1, alpha=1.0)


class Paid(FakeEnvironments):
    """The critic is always right on held-out prompts, the solver never."""

    async def play(self, lease: Any, spec: EpisodeSpec, answer: Answer, counts: bool = False) -> EpisodeOutcome:
        outcome = await super().play(lease, spec, answer)
        return replace(outcome, rewards={"solver": 0.0, "critic": 1.0}) if spec.split == "eval" else outcome


class Never(FakeEnvironments):
    """Who is asked, in training and on held-out prompts."""

    train: tuple[str, ...] = ("solver",)
    held_out: tuple[str, ...] = AGENTS

    async def play(self, lease: Any, spec: EpisodeSpec, answer: Answer, counts: bool = False) -> EpisodeOutcome:
        agents = self.held_out if spec.split == "eval" else self.train
        return await FakeEnvironments.play(replace(self, agents=agents), lease, spec, answer)


@pytest.mark.parametrize(("held_out", "where"), [(AGENTS, "2 steps"), (("solver",), "2 held-out episodes")])
async def test_an_agent_that_is_never_asked_pauses_the_task_by_name(
    tmp_path: Path, held_out: tuple[str, ...], where: str
) -> None:
    here = world(tmp_path, replace(SPEC, steps=6, train=replace(SPEC.train, patience=2)))
    here.environments = Never(here.chance, agents=AGENTS)
    here.environments.held_out = held_out
    ending = await here.go()
    assert ending.state == "paused" and not ending.again
    assert f"The agent critic was never asked in {where}, so the policy critic learns nothing." in ending.reason.words


async def test_a_policy_at_its_target_leaves_the_other_alone(tmp_path: Path) -> None:
    here = world(tmp_path, replace(SPEC, steps=12, eval=EvalSpec(every=1, prompts=2, target=0.9)))
    here.environments = Paid(here.chance, agents=AGENTS)
    ending = await here.go()
    made = steps(here)
    assert ending.state == "done" and ending.reason.words.startswith("solver: Target 0.9 was not reached")
    assert made["solver"] == 12 and made["critic"] < 12
    with Reader(here.home.database) as reader:
        row = reader.task(here.task)
    assert row is not None and row.step == made["critic"], "the task stands where its furthest behind policy does"


class Beaten(FakeEnvironments):
    """On every other held-out prompt the critic has lost before its turn."""

    async def play(self, lease: Any, spec: EpisodeSpec, answer: Answer, counts: bool = False) -> EpisodeOutcome:
        beaten = spec.split == "eval" and spec.index % 2 == 1
        agents = AGENTS[:1] if beaten else AGENTS
        outcome = await FakeEnvironments.play(replace(self, agents=agents), lease, spec, answer)
        return replace(outcome, rewards={"solver": float(beaten), "critic": float(not beaten)})


async def test_who_loses_before_its_turn_has_lost(tmp_path: Path) -> None:
    here = world(tmp_path, replace(SPEC, eval=EvalSpec(every=0, prompts=4)))
    here.environments = Beaten(here.chance, agents=AGENTS)
    assert await here.go() == Ending("done")
    rows = here.query("SELECT p.name, e.score, e.n FROM evals e JOIN policies p ON p.id = e.policy")
    assert {(row["name"], row["score"], row["n"]) for row in rows} == {("solver", 0.5, 4), ("critic", 0.5, 4)}


async def test_a_drain_never_plays_a_shared_group_twice(tmp_path: Path) -> None:
    policies = {"solver": replace(ONE, groups_per_step=1), "critic": replace(ONE, groups_per_step=3)}
    for turns in range(20, 200, 30):
        here = world(tmp_path / str(turns), replace(SPEC, policies=policies))
        run = asyncio.ensure_future(here.go())
        for _ in range(turns):
            await asyncio.sleep(0)
        here.draining.set()
        assert (await run).state in ("running", "done")
        here.restart()
        assert (await here.go()).state == "done"
        plays = Counter(
            row["number"]
            for row in here.query(
                "SELECT DISTINCT number, coalesce(play, id) AS play FROM groups WHERE split = 'train'"
            )
        )
        assert set(plays.values()) == {1}, f"drained after {turns} turns: {plays}"


def pooled(**changes: Any) -> TaskSpec:
    policies = {"solver": ONE, "old": NamedPolicySpec(pool="solver", every=1, size=3)}
    return replace(SPEC, policies=policies, agents={"solver": "solver", "critic": "old"}, **changes)


async def test_a_pool_goes_on_without_its_removed_versions(tmp_path: Path) -> None:
    here = world(tmp_path, pooled(steps=4))
    assert await here.go() == Ending("done")
    kept = here.store.versions.on_disk(here.task)
    assert len(kept) == 3, "those of the pool stay"
    for version in kept[:-1]:
        Path(version.path).unlink()
    here.spec = replace(here.spec, steps=6)
    here.restart()
    assert await here.go() == Ending("done")


@pytest.fixture
async def lender(tmp_path: Path) -> World:
    """Task 1 is done, with two policies, and all of its versions are kept."""
    here = world(tmp_path, replace(SPEC, policies=dict.fromkeys(AGENTS, ONE), keep=KeepSpec(every=1)))
    assert await here.go() == Ending("done")
    here.store.tasks.set_state(here.task, "done")
    return here


def put(here: World, **policies: NamedPolicySpec) -> TaskSpec:
    """Submit a task and make it the world's."""
    spec = replace(SPEC, name="later", policies=policies, agents=dict(zip(AGENTS, policies, strict=True)))
    with Reader(here.home.database) as reader:
        (here.task,) = submit(here.home.database, find_starts([submission(spec)], reader))
    here.spec = spec
    return spec


async def test_each_policy_begins_from_its_own_version(lender: World) -> None:
    put(lender, mine=replace(ONE, start="1/critic@2"), yours=ONE)
    assert await lender.go() == Ending("done")
    rows = lender.query(
        "SELECT p.task, p.name, v.number, v.checksum FROM versions v JOIN policies p ON p.id = v.policy"
    )
    sums = {(row["task"], row["name"], row["number"]): row["checksum"] for row in rows}
    assert sums[2, "mine", 0] == sums[1, "critic", 2] != sums[2, "yours", 0] == sums[1, "solver", 0]


async def test_a_borrowed_version_stays_while_it_plays(lender: World) -> None:
    put(lender, mine=ONE, yours=NamedPolicySpec(frozen="1/critic@2"))
    critic = next(policy for policy, (name, _) in lender.store.versions.standing(1).items() if name == "critic")
    lender.store.tasks.set_state(lender.task, "running")
    lender.environments.failing = lambda spec: spec.split == "train" and spec.index % 1_000_003 >= 3
    assert (await lender.go()).state == "paused" and steps(lender)["mine"] > 0
    with pytest.raises(AdapterError, match="Task 2 is to begin from version 2, or plays with it"):
        await roll_back(lender.store, 1, 1, "critic")
    await Retention(lender.store, 1, critic).retain(set())
    assert 2 in {version.number for version in lender.store.versions.on_disk(1, "critic")}
    says = "Task 2 is to begin from version 2 of task 1, or plays with it"
    for number in (None, 2):
        with pytest.raises(ConfigError, match=says):
            await delete_versions(lender.store, 1, number, "critic")
    lender.environments.failing = lambda spec: False
    lender.restart()
    assert await lender.go() == Ending("done")
    lender.store.tasks.set_state(lender.task, "done")
    await delete_versions(lender.store, 1, None)


async def test_a_missing_borrowed_version_pauses_the_task(lender: World) -> None:
    put(lender, mine=ONE, yours=NamedPolicySpec(frozen="1/critic@1"))
    for version in lender.store.versions.on_disk(1, "critic"):
        Path(version.path).unlink()
    ending = await lender.go()
    assert ending.state == "paused" and "'1/critic@1', was deleted." in ending.reason.words
    folder = lender.home.adapters / "task-1"
    folder.rename(lender.home.root / "elsewhere")
    ending = await lender.go()
    assert ending.state == "queued" and "task-1: the folder is not there" in ending.reason.words


async def test_a_folder_changed_between_runs_is_a_new_version(lender: World, tmp_path: Path) -> None:
    folder = tmp_path / "taken"
    folder.mkdir()
    first, last = (version for version in lender.store.versions.on_disk(1, "solver") if version.number in (1, 3))
    write_peft_folder(folder, read_state(Path(first.path)), Path("base"), "talk")
    put(lender, mine=ONE, yours=NamedPolicySpec(frozen=str(folder)))
    lender.environments.failing = lambda spec: spec.split == "train" and spec.index % 1_000_003 >= 3
    assert (await lender.go()).state == "paused"
    write_peft_folder(folder, read_state(Path(last.path)), Path("base"), "talk")
    lender.environments.failing = lambda spec: False
    assert await lender.go() == Ending("done"), "the same engine goes on"
    frozen_policies = {entry.checksum for entry in lender.workers.sampler.ledger if "/frozen-" in entry.version}
    assert frozen_policies == {first.checksum, last.checksum}


async def test_a_task_of_two_policies_is_made_longer(lender: World) -> None:
    async def ends(task: int) -> None:
        return None

    await extend(lender.store, 1, STEPS + 1, ends)
    lender.spec = replace(lender.spec, steps=STEPS + 1)
    assert await lender.go() == Ending("done")
    assert steps(lender) == dict.fromkeys(AGENTS, STEPS + 1)
    lender.store.tasks.set_state(1, "done")
    newest = lender.store.versions.on_disk(1, "critic")[-1]
    lender.store.versions.prune(newest.id)
    with pytest.raises(AdapterError, match="Its adapter is not on the disk any more"):
        await extend(lender.store, 1, STEPS + 2, ends)


async def test_one_policy_goes_back_and_the_other_stays(lender: World) -> None:
    await roll_back(lender.store, 1, 1, "critic")
    assert steps(lender)["solver"] == STEPS
    lender.environments = Quiet(lender.chance, agents=AGENTS, always=AGENTS)
    assert await lender.go() == Ending("done")
    assert steps(lender) == dict.fromkeys(AGENTS, STEPS)
    plays = lender.query("SELECT policy, number, count(*) AS n FROM groups WHERE state = 'consumed' GROUP BY 1, 2")
    assert {row["n"] for row in plays} == {1} and len(plays) == 2 * 2 * STEPS
