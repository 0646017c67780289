"""The whole pipeline under whatever happens: several tenants' tasks, deaths and pauses at any turn, random delays.

Of every policy of every task it must hold that each step consumed its own groups, each once, within the bound on
staleness, that its adapter is what the stored trajectories teach, and that the task ends within a bound of turns.
"""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import Phase, given, seed, settings, strategies as st

from marlaas.engine.environments.protocol import EpisodeOutcome, EpisodeSpec
from marlaas.engine.spec.task import (
    EvalSpec,
    NamedPolicySpec,
    PolicySpec,
    QueueSpec,
    SamplingSpec,
    TaskSpec,
    TrainSpec,
    agent_map_of,
)
from marlaas.plugins.messages import Answer

from ...examples import examples
from ...seldom import often
from ..queue.scheduler.crowd import Crowd, Happening, in_turns

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""A disk that does not wait, where there is one."""
EXAMPLES = examples(4)
"""Failing examples are shown as drawn: making them smaller takes minutes."""
BASE = TaskSpec(
    "lab",
    "sums",
    "sums",
    steps=2,
    policy=PolicySpec(rank=1),
    sampling=SamplingSpec(max_tokens=2, max_episode_tokens=4),
    eval=EvalSpec(every=0, prompts=1),
)


@st.composite
def tasks(draw: st.DrawFn) -> list[TaskSpec]:
    """Up to four tasks of up to three tenants; a task may wait for any before it."""
    specs = []
    for number in range(1, draw(st.integers(1, 4)) + 1):
        train = TrainSpec(
            groups_per_step=draw(st.integers(1, 3)),
            group_size=draw(st.integers(2, 3)),
            max_staleness=draw(st.integers(0, 4)),
            deterministic=False,
            patience=1000,
        )
        waits_for = draw(st.lists(st.integers(1, number - 1), max_size=1)) if number > 1 else []
        queue = QueueSpec(priority=draw(st.integers(0, 1)), depends_on=tuple(waits_for))
        tenant = draw(st.sampled_from(["lab", "guild", "school"]))
        steps = draw(st.integers(1, 3))
        spec = replace(BASE, name=f"task {number}", tenant=tenant, steps=steps, train=train, queue=queue)
        specs.append(draw(agent_maps(spec)))
    return specs


@st.composite
def agent_maps(draw: st.DrawFn, spec: TaskSpec) -> TaskSpec:
    """The task with one policy, or one that two agents play in, each with a policy, or who is not trained, or both
    with the same."""
    batch = draw(st.none() | st.integers(1, 3))
    second = {
        "alone": None,
        "two": NamedPolicySpec(rank=1, groups_per_step=batch),
        "self": NamedPolicySpec(rank=1),
        "base": NamedPolicySpec(frozen="base"),
        "beginning": NamedPolicySpec(frozen="one@0"),
        "past": NamedPolicySpec(pool="one", every=1, size=2),
    }
    kind = draw(st.sampled_from([*second, "two"]))
    partner = second[kind]
    if partner is None:
        return spec
    policies = {"one": NamedPolicySpec(rank=1)} | ({} if kind == "self" else {"other": partner})
    agents = {"first": "one", "second": "one" if kind == "self" else "other"}
    environment = draw(st.sampled_from(["talk", "whisper"]))
    return replace(spec, environment=environment, policy=PolicySpec(), policies=policies, agents=agents)


HAPPENINGS = st.lists(
    st.builds(
        Happening,
        turns=st.integers(1, 150),
        kind=st.sampled_from(["workers die", "engine stops", "engine is killed", "pause", "resume", "locked"]),
        place=st.integers(0, 3),
    ),
    max_size=4,  # workers that die five times under a task without a step between pause it
)


@pytest.mark.hypothesis
@pytest.mark.timeout(180)
@pytest.mark.parametrize("part", often((0, 3), range(4)))
def test_nothing_is_lost_doubled_stale_or_starved(part: int) -> None:
    @seed(part)
    @settings(max_examples=EXAMPLES, phases=[Phase.generate])
    @given(
        specs=tasks(),
        slots=st.integers(1, 4),
        chance=st.integers(0, 10**6),
        most=st.integers(0, 6),
        failing=st.sampled_from([0.0, 0.1, 0.3]),
        happenings=HAPPENINGS,
    )
    def holds(
        specs: list[TaskSpec], slots: int, chance: int, most: int, failing: float, happenings: list[Happening]
    ) -> None:
        with TemporaryDirectory(dir=MEMORY) as folder:
            in_turns(live(Path(folder), specs, slots, chance, most, failing, happenings))

    holds()


async def live(
    root: Path, specs: list[TaskSpec], slots: int, chance: int, most: int, failing: float, happenings: list[Happening]
) -> None:
    crowd = Crowd(root, specs, slots, chance, most)
    dice = random.Random(chance)
    crowd.environments.failing = lambda spec: spec.split == "train" and dice.random() < failing
    for happening in happenings:
        await crowd.befall(happening)
    await crowd.finish(bound(specs, most))
    await crowd.end()
    crowd.check_histories()
    check_order(crowd)
    crowd.store.close()


def bound(specs: list[TaskSpec], most: int) -> int:
    """Turns in which all tasks end, one after another if need be, from anywhere."""
    steps = sum(spec.steps * max(1, len(agent_map_of(spec).trained)) for spec in specs)
    return 200 * len(specs) + 50 * steps * (1 + most)


def check_order(crowd: Crowd) -> None:
    """A task that waits for another begins after that one's end."""
    for task, spec in crowd.tasks.items():
        for other in spec.queue.depends_on:
            (row,) = crowd.query(
                f"SELECT a.started, b.finished FROM tasks a, tasks b WHERE a.id = {task} AND b.id = {other}"
            )
            assert row["started"] >= row["finished"]


@pytest.mark.parametrize("chance", [0])
def test_a_lock_that_comes_again_costs_only_time(tmp_path: Path, chance: int) -> None:
    in_turns(locked_out(tmp_path, chance))


async def locked_out(root: Path, chance: int) -> None:
    """Whatever is to be written meets the lock, for the database is free for a few turns at a time."""
    train = TrainSpec(groups_per_step=2, group_size=2, max_staleness=1)
    specs = [replace(BASE, steps=3, train=train, eval=EvalSpec(every=1, prompts=2)), replace(BASE, name="other")]
    crowd, dice = Crowd(root, specs, 2, chance, 2), random.Random(chance)
    while set(crowd.states().values()) != {"done"}:
        assert not {"paused", "failed"} & set(crowd.states().values()), crowd.query("SELECT state, reason FROM tasks")
        assert crowd.turns < 20_000, crowd.states()
        await crowd.live_locked(dice.randint(1, 20))
        await crowd.live(dice.randint(1, 12))
    await crowd.end()
    crowd.check_histories()
    crowd.store.close()


@pytest.mark.parametrize("held", [0, 3])
def test_training_begins_while_groups_are_still_played(tmp_path: Path, held: int) -> None:
    in_turns(begins_early(tmp_path, held))


async def begins_early(root: Path, held: int) -> None:
    """One group's environment does not end before the trainer has had all the others."""
    crowd = Crowd(root, [replace(BASE, train=TrainSpec(groups_per_step=4, group_size=2, max_staleness=0))], 1, 0, 3)
    trainer, play, released = crowd.workers.trainer, crowd.environments.play, asyncio.Event()

    async def held_back(lease: Any, spec: EpisodeSpec, answer: Answer, counts: bool = False) -> EpisodeOutcome:
        if spec.split == "train" and spec.index == held:
            await released.wait()
        return await play(lease, spec, answer)

    crowd.environments.play = held_back  # type: ignore[method-assign]
    while len(trainer.pending.get("task-1/policy", ())) < 3:
        await crowd.live(1)
        assert crowd.turns < 2000, trainer.pending
    assert sorted(trainer.pending["task-1/policy"]) == sorted({0, 1, 2, 3} - {held})
    released.set()
    await crowd.finish(2000)
    await crowd.end()
    crowd.check_histories()
    crowd.store.close()


def test_a_version_that_is_refused_pauses_its_task_alone(tmp_path: Path) -> None:
    in_turns(refused(tmp_path))


async def refused(root: Path) -> None:
    """The sampler loads other bytes for one task until a person has seen to it; the other task trains to its end."""
    crowd = Crowd(root, [BASE, replace(BASE, name="other", tenant="guild")], 2, 0, 3)
    load, other = crowd.workers.sampler.load, crowd.others[0]

    async def mixed_up(version: str, path: str) -> str:
        checksum = await load(version, path)
        return "other bytes" if version.startswith("task-1/policy-v1") else checksum

    crowd.workers.sampler.load = mixed_up  # type: ignore[method-assign]
    while crowd.states() != {1: "paused", other: "done"}:
        await crowd.live(10)
        assert crowd.turns < 3000, crowd.states()
    (row,) = crowd.query("SELECT reason FROM tasks WHERE id = 1")
    assert row["reason"].startswith("The sampler loaded other bytes as task-1/policy-v1")
    crowd.workers.sampler.load = load  # type: ignore[method-assign]
    crowd.ask("resume", 1)
    await crowd.live(50)
    await crowd.finish(2000)
    await crowd.end()
    crowd.check_histories()
    crowd.store.close()
