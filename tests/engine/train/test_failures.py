"""Tasks that end before their last step, and what they say; draws that are lost by chance and otherwise."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from marlaas.engine.environments.protocol import EpisodeSpec
from marlaas.engine.queue.scheduler.scheduler import Ending
from marlaas.engine.spec.task import EvalSpec, TaskSpec
from marlaas.engine.train import failures
from marlaas.engine.train.failures import (
    FEWEST_LOST as FEWEST,
    MOST_LOST as MOST,
    DrawHistory,
    all_equal,
    all_lost_by_chance,
    the_only,
)
from marlaas.engine.trainer.advantages import RewardSummary
from marlaas.engine.trajectories import Failure

from ...seldom import seldom
from ..queue.scheduler.world import World
from .test_learning import SPEC


async def run(world: World) -> tuple[Ending, int]:
    """How it ended, and after how many steps."""
    ending = await asyncio.wait_for(world.go(), 30)
    return ending, world.query("SELECT max(number) AS n FROM steps")[0]["n"]


def world_of(root: Path, spec: TaskSpec, held_out: Callable[[EpisodeSpec], float], seed: int = 0) -> World:
    """A world whose training rewards differ within each group and whose held-out scores are given."""
    world = World(root, spec, seed)
    world.environments.score = lambda spec: held_out(spec) if spec.split == "eval" else float(spec.member)
    return world


async def test_scores_that_do_not_rise_end_the_task(tmp_path: Path) -> None:
    spec = replace(SPEC, steps=50, eval=EvalSpec(every=1, prompts=3, patience=2))
    ending, steps = await run(world_of(tmp_path, spec, lambda _: 0.25))
    assert ending == Ending("done", "The held-out score did not rise in 2 evaluations; best was 0.25 at step 0.")
    assert 2 <= steps < 50


async def test_no_death_moves_the_end_of_a_deterministic_run(tmp_path: Path) -> None:
    train = replace(SPEC.train, deterministic=True, max_staleness=0)
    spec = replace(SPEC, steps=50, train=train, eval=EvalSpec(every=2, prompts=3, patience=2))
    for turns in (40, 100, 160):
        world = world_of(tmp_path / str(turns), spec, lambda _: 0.25)
        running = asyncio.ensure_future(run(world))
        for _ in range(3):
            for _ in range(turns):
                await asyncio.sleep(0)
            world.kill_workers()
        _, steps = await running
        assert steps == 4
        assert [row["step"] for row in world.query("SELECT step FROM evals ORDER BY step")] == [0, 2, 4]


async def test_patience_for_equal_rewards_outlives_a_restart(tmp_path: Path) -> None:
    spec = replace(SPEC, steps=50, train=replace(SPEC.train, patience=6))
    world = World(tmp_path, spec)
    world.environments.score = lambda _: 0.5
    running = asyncio.ensure_future(run(world))
    while not world.query("SELECT 1 FROM steps WHERE number = 3"):
        await asyncio.sleep(0)
    world.kill_workers()
    ending, steps = await running
    assert ending.state == "paused" and "No group had two different rewards in 6 steps" in ending.reason.words
    assert steps == 6


@pytest.mark.parametrize(
    ("reward", "says", "helps"),
    [
        seldom(lambda spec: 1.0, "rewards were 1.00: it is solved. ", "Make it harder"),
        (lambda spec: 0.0, "rewards were 0.00: nothing to climb. ", "Where right ones earn nothing, mend the reward"),
        seldom(lambda spec: -1.0, "rewards were -1.00: nothing to climb. ", "pay for a part of the way"),
        seldom(lambda spec: 0.25, "rewards were 0.25: every reply earns the same. ", "tell better replies from worse"),
        (lambda spec: spec.index % 2, "Rewards were 0.00 to 1.00, but equal within each group", '`sampling = "diff'),
    ],
)
async def test_equal_rewards_say_which_they_were_and_what_helps(
    tmp_path: Path,
    reward: Callable[[EpisodeSpec], float],
    says: str,
    helps: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(failures, "MANY", 1.1)  # most replies of this sampler are cut off
    world = World(tmp_path, replace(SPEC, steps=50, train=replace(SPEC.train, patience=3, groups_per_step=8)))
    world.environments.score = lambda spec: float(reward(spec))
    ending, _ = await run(world)
    assert ending.state == "paused" and says in ending.reason.words[:90] and helps in ending.reason.words
    if "All" in ending.reason.words:
        count = 8 * SPEC.train.group_size
        assert ending.reason.words.startswith(f"All {count} rewards were ")
        assert ending.reason.words.index(". ") < 60, "the cause is among the first 60 characters"


async def test_a_resume_and_a_new_version_begin_the_count_anew(tmp_path: Path) -> None:
    """Else a task that a person resumes makes one step, and pauses again."""
    spec = replace(SPEC, steps=50, train=replace(SPEC.train, patience=3))
    world = World(tmp_path, spec)
    world.environments.score = lambda _: 0.5
    for made in (3, 6, 9):
        ending, steps = await run(world)
        assert (ending.state, steps) == ("paused", made)
        world.store.tasks.set_state(world.task, "queued", fresh=True)


def test_failures_that_are_paid_are_the_reason() -> None:
    rewards = [RewardSummary(8, 0.0, 0.0, True, 0.0, 0.0)]
    what, _ = all_equal(rewards, failure=Failure("ValueError: no signal", "env.py", 4))
    assert what == "All 8 rewards were 0.00, which is paid for a failure: ValueError: no signal (env.py, line 4)"
    failures = [Failure("a", "env.py", 4), Failure("b", "env.py", 4)]
    assert the_only(failures) == failures[0]
    assert the_only([*failures, None]) is the_only([*failures, Failure("b", "env.py", 5)]) is the_only([]) is None
    what, helps = all_equal(rewards, cut=0.9)
    assert what.endswith("and the length limit ended 90% of the replies") and "Raise `max_tokens`" in helps


async def test_rewards_that_became_equal_end_the_task_as_solved(tmp_path: Path) -> None:
    world = World(tmp_path, replace(SPEC, steps=50, train=replace(SPEC.train, patience=3)))
    first = 2 * SPEC.train.groups_per_step * SPEC.train.group_size
    begun = world.environments.begun
    world.environments.score = lambda spec: 1.0 if len(begun) > 3 * first else float(spec.member % 2)
    ending, _ = await run(world)
    assert ending.state == "done" and "rewards were 1.00: it is solved" in ending.reason.words


def streak(draws: DrawHistory) -> int:
    """How many draws of one group are lost before that is more than chance."""
    return next(number for number in range(MOST + 1) if draws.beyond_chance(number))


@pytest.mark.parametrize("share", [0.02, 0.2, 0.5])
def test_a_share_of_bad_instances_goes_on(share: float) -> None:
    """Tasks of 60 steps, 480 groups each: with a share of one in five, 14 % of them lose five draws in a row."""
    longest = 0
    for seed in range(40):
        chance, draws = random.Random(seed), DrawHistory()
        for _ in range(480):
            lost = 0
            while chance.random() < share:
                lost += 1
                assert not draws.beyond_chance(lost), (share, seed, lost)
            draws.survived(lost)
            longest = max(longest, lost)
    assert longest >= {0.02: 2, 0.2: FEWEST, 0.5: 10}[share], "chance tries what it can"


def test_rows_that_run_out_are_noticed_soon() -> None:
    draws = DrawHistory()
    for _ in range(41):
        draws.survived(0)
    assert streak(draws) == FEWEST


def test_laplaces_rule_by_hand() -> None:
    assert all_lost_by_chance(0, 0, 1) == 1 / 2
    assert all_lost_by_chance(1, 2, 2) == 2 / 4 * 3 / 5
    assert all_lost_by_chance(7, 9, 0) == 1
