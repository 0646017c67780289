"""What a task's held-out scores rest on, in whole runs: failures, few prompts, several samples, slow evaluations."""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from marlaas.engine.environments.protocol import EpisodeOutcome, EpisodeSpec
from marlaas.engine.queue.scheduler.scheduler import Ending
from marlaas.engine.spec.task import EvalSpec
from marlaas.engine.train.evaluation import MOST_OVERLOADED, TOO_OFTEN
from marlaas.engine.train.groups import DEATHS, RUNS
from marlaas.engine.trajectories import Failure
from marlaas.plugins.messages import Answer, Ask, Message

from ...queue.scheduler.fake_environments import FakeEnvironments
from ...queue.scheduler.world import World
from ..test_learning import SPEC, check_history

TOO_LONG = "it took longer than 60 s"
LATE = EpisodeOutcome("timeout", failure=Failure(TOO_LONG))


def world_of(root: Path, measure: EvalSpec, steps: int = 6, seed: int = 0) -> World:
    """A world whose training rewards differ within each group."""
    world = World(root, replace(SPEC, steps=steps, eval=measure), seed)
    world.environments.score = lambda spec: float(spec.member) if spec.split == "train" else 0.5
    return world


async def ends(world: World) -> Ending:
    return await asyncio.wait_for(world.go(), 60)


def log(world: World) -> list[str]:
    return [row["message"] for row in world.query("SELECT message FROM events WHERE kind = 'evaluation' ORDER BY id")]


async def test_one_success_of_64_reaches_no_target_and_prunes_nothing(tmp_path: Path) -> None:
    world = world_of(tmp_path, EvalSpec(every=1, prompts=64, target=0.9), steps=8)
    world.spec = replace(world.spec, train=replace(SPEC.train, deterministic=True, max_staleness=0))
    scores = {1: 0.6, 2: 0.7, 3: 0.7}

    def version() -> int:
        return int(world.query("SELECT coalesce(max(number), 0) AS n FROM steps")[0]["n"])

    def late(spec: EpisodeSpec) -> bool:
        return spec.split == "eval" and version() > 3 and spec.index > 0

    world.environments.ended = lambda spec: LATE if late(spec) else None
    world.environments.score = lambda spec: (
        float(spec.member) if spec.split == "train" else scores.get(version(), 1.0 if version() else 0.1)
    )
    ending = await ends(world)
    assert ending.reason.words == "Target 0.9 was not reached; best was 0.7 at step 2."
    assert world.query("SELECT max(number) AS n FROM steps") == [{"n": 8}]
    rows = {row["step"]: row for row in world.query("SELECT * FROM evals")}
    assert sorted(rows) == list(range(9))
    for step in range(4, 9):
        assert (rows[step]["score"], rows[step]["failures"], rows[step]["prompts"]) == (None, 63, 1)
    kept = world.query("SELECT number FROM versions WHERE label LIKE 'best%' AND state = 'committed'")
    assert kept == [{"number": 2}], "the real best is on the disk, the first of equals"
    assert f"No held-out score at step 8: 63 of 64 episodes failed. The first: {TOO_LONG}." in log(world)


async def test_what_failed_is_played_again_and_then_counts(tmp_path: Path) -> None:
    """Half of the prompts fail in all tries of the first go, and in none of the second."""
    world = world_of(tmp_path, EvalSpec(every=0, prompts=16), steps=1)
    tries = Counter[int]()

    def failing(spec: EpisodeSpec) -> bool:
        tries[spec.index] += spec.split == "eval"
        return spec.split == "eval" and spec.index % 2 == 1 and tries[spec.index] <= RUNS

    world.environments.failing = failing
    assert await ends(world) == Ending("done")
    for row in world.query("SELECT score, n, failures FROM evals"):
        assert row == {"score": 0.5, "n": 16, "failures": 0}


async def test_what_ran_out_of_time_is_tried_again(tmp_path: Path) -> None:
    """As in training. One prompt of 16 is no tenth, so nothing else would play it again."""
    world = world_of(tmp_path, EvalSpec(every=0, prompts=16), steps=1)
    tries = Counter[int]()

    def ended(spec: EpisodeSpec) -> EpisodeOutcome | None:
        tries[spec.index] += spec.split == "eval"
        return LATE if spec.split == "eval" and spec.index == 5 and tries[spec.index] % RUNS else None

    world.environments.ended = ended
    assert await ends(world) == Ending("done")
    for row in world.query("SELECT score, n, failures FROM evals"):
        assert row == {"score": 0.5, "n": 16, "failures": 0}


@pytest.mark.parametrize("skipped", [range(4), range(15)])
async def test_skipped_draws_are_no_failures(tmp_path: Path, skipped: range) -> None:
    """Skipped before the policy said anything: no reply is chosen by it."""
    world = world_of(tmp_path, EvalSpec(every=0, prompts=16), steps=1)

    def ended(spec: EpisodeSpec) -> EpisodeOutcome | None:
        return EpisodeOutcome("skip") if spec.split == "eval" and spec.index in skipped else None

    world.environments.ended = ended
    assert await ends(world) == Ending("done")
    left = 16 - len(skipped)
    for row in world.query("SELECT score, n, prompts, failures, floor FROM evals"):
        assert {**row, "floor": 0.0} == {"score": 0.5, "n": left, "prompts": left, "failures": 0, "floor": 0.0}
        assert row["floor"] is not None, "nor do they cost the baseline"


async def test_the_load_of_the_machine_uses_up_no_try(tmp_path: Path) -> None:
    world = world_of(tmp_path, EvalSpec(every=0, prompts=4), steps=1)
    tries = Counter[int]()

    def ended(spec: EpisodeSpec) -> EpisodeOutcome | None:
        if spec.split == "train" or tries[spec.index] == MOST_OVERLOADED - 1:
            return None
        tries[spec.index] += 1
        return replace(LATE, overloaded=True)

    world.environments.ended = ended
    assert await ends(world) == Ending("done")
    assert [row["score"] for row in world.query("SELECT score FROM evals")] == [0.5, 0.5]
    assert {row["failures"] for row in world.query("SELECT failures FROM evals")} == {0}


class Killing(FakeEnvironments):
    """The policy's reply to one prompt ends the process."""

    deaths = 0

    async def play(self, lease: Any, spec: EpisodeSpec, answer: Answer, counts: bool = False) -> EpisodeOutcome:
        if not counts or spec.split == "train" or spec.index:
            return await super().play(lease, spec, answer, counts)
        self.deaths += 1
        return EpisodeOutcome("error", failure=Failure("killed"), died=True)


async def test_a_reply_that_kills_is_not_played_three_times(tmp_path: Path) -> None:
    """The third death within a minute would make the environment rest, for every task."""
    world = world_of(tmp_path, EvalSpec(every=0, prompts=16), steps=1)
    score, world.environments = world.environments.score, (killing := Killing(world.chance))
    killing.score = score
    assert await ends(world) == Ending("done")
    assert world.query("SELECT n, failures FROM evals") == [{"n": 15, "failures": 1}] * 2
    assert killing.deaths == 2 * DEATHS


async def test_an_environment_that_always_fails_pauses_the_task(tmp_path: Path) -> None:
    world = world_of(tmp_path, EvalSpec(every=0, prompts=4), steps=1)
    world.environments.failing = lambda spec: spec.split == "eval"
    ending = await ends(world)
    assert ending.state == "paused" and "No held-out episode has a reward: it broke (env.py, line 3)" in str(ending)


class Rows(FakeEnvironments):
    """Ten rows, of which training and evaluation have their own; an answer is right by its parity."""

    many = 10

    def ask_for(self, spec: EpisodeSpec, turn: int, agent: str) -> Ask:
        index = spec.index % self.many
        return Ask(agent=agent, messages=(Message("user", f"{spec.split} {index} {turn}"),))


async def test_ten_rows_count_once_each(tmp_path: Path) -> None:
    world = world_of(tmp_path, EvalSpec(every=0, prompts=64), steps=1)
    world.environments = Rows(world.chance, rows=True)
    world.environments.score = lambda spec: float(spec.member if spec.split == "train" else spec.index < 3)
    assert await ends(world) == Ending("done")
    for row in world.query("SELECT score, stderr, n, prompts FROM evals"):
        error = math.sqrt(0.3 * 0.7 * 10 / 9 / 10)
        assert row == {"score": 0.3, "stderr": pytest.approx(error, rel=1e-12), "n": 10, "prompts": 10}  # rounding
    assert log(world) == ["Only 10 of 64 held-out prompts differ: each is measured once."]


async def test_training_never_meets_what_is_held_out_of_ten_prompts(tmp_path: Path) -> None:
    """One space of ten prompts for both splits."""

    class Small(Rows):
        def ask_for(self, spec: EpisodeSpec, turn: int, agent: str) -> Ask:
            index = spec.index * 7 % self.many
            return Ask(agent=agent, messages=(Message("user", f"{index} {turn}"),))

    world = world_of(tmp_path, EvalSpec(every=0, prompts=64), steps=4)
    world.environments = Small(world.chance)
    world.environments.score = lambda spec: float(spec.member if spec.split == "train" else 1)
    assert await ends(world) == Ending("done")
    check_history(world)
    asked: dict[str, set[str]] = {"train": set(), "eval": set()}
    for row in world.query('SELECT g.split, j.turns FROM trajectories j JOIN groups g ON g.id = j."group"'):
        asked[row["split"]].add(json.loads(row["turns"])[0]["text"])
    assert len(asked["eval"]) == 5 and asked["train"] and not asked["eval"] & asked["train"]
    assert len(log(world)) == 1 and "5 of its 10 are measured, and kept out of training" in log(world)[0]


async def test_pass_at_8_is_what_the_stored_replies_say(tmp_path: Path) -> None:
    """Graded anew from the text of the replies: the reward is the parity of what was said."""
    world = world_of(tmp_path, EvalSpec(every=0, prompts=12, samples=8, temperature=1.0), steps=2)
    world.environments.score = lambda spec: float(spec.member) if spec.split == "train" else None
    assert await ends(world) == Ending("done")
    rows = world.query("SELECT * FROM evals ORDER BY step")
    assert [row["step"] for row in rows] == [0, 2]
    for row in rows:
        replies: dict[int, list[int]] = {}
        for said in world.query(
            'SELECT g.number, j.turns FROM trajectories j JOIN groups g ON g.id = j."group"'
            f" WHERE g.split = 'eval' AND g.step = {row['step']}"
        ):
            text = "".join(turn["text"] for turn in json.loads(said["turns"]) if turn["role"] == "assistant")
            replies.setdefault(said["number"], []).append(sum(map(ord, text)) % 2)
        assert sorted(map(len, replies.values())) == [8] * 12
        passed = fmean(1 - math.comb(8 - sum(one), 8) / math.comb(8, 8) for one in replies.values())
        assert row["pass_at"] == passed == row["best_of"], "rewards are 0 or 1"
        assert row["score"] == pytest.approx(fmean(map(fmean, replies.values())), rel=1e-12)  # rounding
        assert (row["n"], row["samples"], row["prompts"]) == (96, 8, 12)
        assert {tuple(one) for one in replies.values()} > {tuple(replies[0])}, "samples differ"


def slow(world: World, turns: int) -> Callable[..., Any]:
    """Evaluation that takes many turns of the event loop."""
    play = world.environments.play

    async def played(lease: Any, spec: EpisodeSpec, answer: Answer, counts: bool = False) -> EpisodeOutcome:
        for _ in range(turns if spec.split == "eval" else 0):
            await asyncio.sleep(0)
        return await play(lease, spec, answer, counts)

    return played


async def test_slow_evaluations_do_not_pile_up(tmp_path: Path) -> None:
    """Each lasts for four steps of training, however fast the machine makes them."""
    world = world_of(tmp_path, EvalSpec(every=1, prompts=3), steps=40)
    play = world.environments.play

    def step() -> int:
        return int(world.query("SELECT coalesce(max(number), 0) AS n FROM steps")[0]["n"])

    async def lasting(lease: Any, spec: EpisodeSpec, answer: Answer, counts: bool = False) -> EpisodeOutcome:
        over = min(40, step() + 4) if spec.split == "eval" else 0
        while over and step() < over:
            await asyncio.sleep(0)
        return await play(lease, spec, answer, counts)

    world.environments.play = lasting  # type: ignore[method-assign]
    assert await ends(world) == Ending("done")
    steps = [row["step"] for row in world.query("SELECT step FROM evals ORDER BY id")]
    assert steps[0] == 0 and steps[-1] == 40 and len(steps) <= 12, "what waited was left out, the last one never"
    assert steps == sorted(steps), "the newest wins"
    assert log(world) == [TOO_OFTEN]
    check_history(world)


@pytest.mark.parametrize("measure", [EvalSpec(every=1, prompts=3, patience=3), EvalSpec(every=1, prompts=3)])
async def test_a_deterministic_task_leaves_no_evaluation_out(tmp_path: Path, measure: EvalSpec) -> None:
    world = world_of(tmp_path, measure, steps=8)
    world.spec = replace(world.spec, train=replace(SPEC.train, deterministic=True, max_staleness=0))
    world.environments.play = slow(world, 500)  # type: ignore[method-assign]
    assert (await ends(world)).state == "done"
    steps = [row["step"] for row in world.query("SELECT step FROM evals ORDER BY id")]
    assert steps == (list(range(4)) if measure.patience else list(range(9))) and not log(world)
