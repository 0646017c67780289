"""Learning that goes wrong is found, with the rollouts that show it; nothing is found in healthy runs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from marlaas.engine.environments.protocol import Answering, EpisodeOutcome, EpisodeSpec
from marlaas.engine.queue.scheduler.commands import Commands, roll_back
from marlaas.engine.queue.scheduler.scheduler import Ending, run_task
from marlaas.engine.spec.task import EvalSpec, TaskSpec, TrainSpec, WatchSpec
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.submissions import command
from marlaas.engine.store.versions import HeldOutScore
from marlaas.engine.train.held_out import Constant
from marlaas.engine.train.watch import Course, Learning, Watch, found, sentence
from marlaas.plugins.messages import Answer

from ...examples import examples
from ...seldom import seldom
from ..queue.scheduler.world import World
from .test_learning import SPEC

HEALTHY = {
    "tokens": 200.0,
    "reward": 0.5,
    "reward_max": 1.0,
    "reward_spread": 0.4,
    "entropy": 0.3,
    "surprisal": 0.3,
    "same_reply": 0.1,
    "first_prompts": 8.0,
    "length": 4.0,
    "cut": 0.0,
    "kl": 0.0,
    "drift_mean": 0.1,
    "gap_mean": 1e-5,
    "moved": 0.1,
    "weight_ess": 0.95,
}
"""A step in the middle of a run of the shipped base."""

STEPS = 24

CHEATED = replace(
    SPEC,
    steps=STEPS,
    train=TrainSpec(groups_per_step=2, group_size=2, max_staleness=1),
    eval=EvalSpec(every=4, prompts=12),
    watch=WatchSpec(ignore=("cut_replies",)),
)


def cheated(spec: TaskSpec, root: Path) -> World:
    """A world whose training rewards stay what they are, while held-out prompts earn nothing after a while."""
    world = World(root, spec)
    measured: list[int] = []
    plays = world.environments.play

    async def play(lease: Any, spec: EpisodeSpec, answer: Answer, counts: bool = False) -> EpisodeOutcome:
        canned = isinstance(answer, Answering) and isinstance(answer.answer, Constant)  # those are the baseline's
        if spec.split == "eval" and not canned:
            measured.append(spec.index)
        return await plays(lease, spec, answer, counts)

    def score(episode: EpisodeSpec) -> float:
        if episode.split != "eval":
            return float(episode.member)
        return 1.0 if len(measured) <= 3 * 12 else 0.0  # the first three evaluations

    world.environments.play = play  # type: ignore[method-assign]
    world.environments.score = score
    return world


async def run(world: World, told: list[tuple[str, int]] | None = None) -> Ending:
    """Run the task to where it stops."""
    tell = (lambda *event: told.append(event)) if told is not None else (lambda event, task: None)
    return await asyncio.wait_for(run_task(world.task, world.spec, world, lambda runner: None, tell), 30)  # type: ignore[arg-type]


def rows(world: World) -> list[dict[str, Any]]:
    return world.query("SELECT * FROM findings ORDER BY code")


async def test_hacking_is_told_once_with_its_rollouts(tmp_path: Path) -> None:
    world, told = cheated(CHEATED, tmp_path), list[tuple[str, int]]()
    assert await run(world, told) == Ending("done")
    (row,) = rows(world)
    evidence, rollouts = json.loads(row["evidence"]), json.loads(row["rollouts"])
    assert (row["code"], row["holds"], row["pending"]) == ("reward_hacking", 1, 0)
    assert (evidence["best"], evidence["score"], evidence["best_step"]) == (1.0, 0.0, 0.0)
    assert row["step"] == evidence["score_step"] >= 12, "the fourth that was measured"
    held_out = world.query(
        'SELECT j.id, g.step, g.split FROM trajectories j JOIN groups g ON g.id = j."group"'
        f" WHERE j.id IN ({', '.join(map(str, rollouts))})"
    )
    assert len(rollouts) == len(held_out) == 3 and {(one["step"], one["split"]) for one in held_out} == {
        (row["step"], "eval")
    }
    lines = world.query("SELECT message, level FROM events WHERE kind = 'learning'")
    assert lines == [{"message": sentence(world.task, "policy", "reward_hacking", row["step"]), "level": "warning"}]
    assert told == [("finding", world.task)]
    with Reader(world.home.database) as reader:
        task = reader.task(world.task)
    assert task is not None and [one.code for one in task.findings] == ["reward_hacking"]
    assert task.findings[0].rollouts == tuple(rollouts) and task.findings[0].holds


@pytest.mark.parametrize("kill", [seldom(True), False])
async def test_nobody_is_told_twice(tmp_path: Path, kill: bool) -> None:
    world, told = cheated(CHEATED, tmp_path), list[tuple[str, int]]()
    running = asyncio.ensure_future(run(world, told))
    while not rows(world):
        await asyncio.sleep(0)
    if kill:
        world.kill_workers()
    else:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        world.restart()
        running = asyncio.ensure_future(run(world, told))
    assert await running == Ending("done")
    assert len(rows(world)) == len(told) == 1
    assert len(world.query("SELECT * FROM events WHERE kind = 'learning'")) == 1


async def test_a_finding_goes_with_its_step(tmp_path: Path) -> None:
    world = cheated(replace(CHEATED, watch=WatchSpec(pause=("reward_hacking",), ignore=("cut_replies",))), tmp_path)
    assert (await run(world)).state == "paused"
    assert rows(world)
    world.store.tasks.set_state(world.task, "paused")
    (version,) = world.query("SELECT number FROM versions WHERE state = 'committed' ORDER BY number LIMIT 1")
    await roll_back(world.store, world.task, version["number"])
    assert rows(world) == []


async def steer(world: World, kind: str) -> None:
    """What a person asks for."""

    async def nothing(*_: object) -> None: ...

    stop: Callable[[], None] = lambda: None  # noqa: E731
    command(world.home.database, kind, world.task)
    (asked,) = world.store.tasks.new_commands()
    await Commands(world.store, nothing, stop, stop, nothing).carry_out(asked)


async def test_a_task_file_may_ask_for_a_pause(tmp_path: Path) -> None:
    world = cheated(replace(CHEATED, watch=WatchSpec(pause=("reward_hacking",), ignore=("cut_replies",))), tmp_path)
    ending = await run(world)
    assert ending.state == "paused" and not ending.again, "a further try would end the same way"
    step = rows(world)[0]["step"]
    assert ending.reason.words.startswith(f"Learning seems to go wrong: reward hacking at step {step},")
    assert f"`marlaas resume {world.task}`" in ending.reason.words
    world.restart()
    assert (await run(world)).state == "paused", "nobody has resumed it"
    world.store.tasks.set_state(world.task, "paused", ending.reason)
    await steer(world, "resume")
    assert await run(world) == Ending("done"), "a person has seen it"
    assert world.query("SELECT max(number) AS n FROM steps") == [{"n": STEPS}]


async def test_a_finding_that_is_over_is_marked_so(tmp_path: Path) -> None:
    world = World(tmp_path, CHEATED)
    own = await watching(world)
    for step in range(1, 21):
        own.see(step, {"tokens": 1.0, "moved": 3.0 if step <= 10 else 0.1})
        await own.look()
        if step in (10, 20):
            assert [(row["code"], row["step"], row["holds"]) for row in rows(world)] == [
                ("large_steps", 5, int(step == 10))
            ]
    for step in range(21, 31):
        own.see(step, {"tokens": 1.0, "moved": 3.0})
        await own.look()
    assert [row["holds"] for row in rows(world)] == [1]
    assert len(world.query("SELECT * FROM events WHERE kind = 'learning'")) == 1, "told once"


async def watching(world: World) -> Watch:
    """A watch of the world's only policy, without a run."""
    from marlaas.engine.train.opening import TrainedPolicy

    services = await world.services()
    return Watch(services, TrainedPolicy.of(services, world.task, "policy", world.spec))


def falling(start: float, end: float, steps: int = 40, seed: int = 0, noise: float = 0.02) -> list[float]:
    """From one value to another on a line."""
    way = ((end - start) * step / (steps - 1) for step in range(steps))
    return [start + far + one for far, one in zip(way, noisy(0.0, noise, steps, seed), strict=True)]


def stepped(before: float, after: float, at: int = 25, steps: int = 40, noise: float = 0.05) -> list[float]:
    """One value, and from a step on another."""
    return noisy(before, noise, at) + noisy(after, noise, steps - at, 1)


def test_entropy_that_is_gone_before_the_task_is_learned() -> None:
    entropy = falling(0.4, 0.01, noise=0.005)
    stuck = seen(surprisal=entropy, reward=noisy(0.4, 0.05, 40), reward_max=stepped(0.9, 0.42))
    evidence = found(stuck)["entropy_collapse"]
    assert evidence["now"] < 0.05 < 0.3 < evidence["start"] and evidence["best"] < 0.5 < 0.8 < evidence["reached"]


def test_length_that_runs_into_the_limit() -> None:
    long = seen(length=falling(5, 31, noise=0.5), cut=falling(0.0, 0.9), reward=falling(0.2, 0.9))
    assert found(long)["exploding_length"]["cut"] > 0.6


def test_length_that_brings_nothing() -> None:
    assert found(SLOW)["exploding_length"]["reward"] == pytest.approx(0.4, abs=0.1)


def test_a_limit_that_was_tight_from_the_beginning() -> None:
    tight = seen(length=falling(10, 30, noise=0.5), cut=noisy(0.9, 0.02, 40), reward=falling(0.2, 0.8))
    assert set(found(tight)) == {"cut_replies"}, "it is no growth of replies"


def test_held_out_falls_while_reward_rises() -> None:
    cheating = with_scores(seen(reward=falling(0.3, 0.95)), {0: 0.5, 10: 0.55, 20: 0.4, 30: 0.05, 40: 0.02}, 0.06)
    evidence = found(cheating)["reward_hacking"]
    assert (evidence["best"], evidence["best_step"], evidence["score"]) == (0.55, 10.0, 0.02)
    assert evidence["reward"] > evidence["reward_then"]


def test_a_reward_that_falls() -> None:
    evidence = found(FALLEN)["falling_reward"]
    assert evidence["best"] > 0.7 and evidence["now"] < 0.2 and evidence["steps"] % 5 == 0


def test_a_distance_that_multiplies() -> None:
    runaway = [0.05 * 1.25**step for step in range(30)]
    assert found(seen(kl=runaway, reward=noisy(0.4, 0.05, 30)))["kl_runaway"]["now"] > 10
    assert found(seen(kl=[0.0, 2e6, 1e7, 1e5, 3e4]))["kl_runaway"]["now"] == 1e5, "lost within the first steps"
    limited = replace(seen(kl=noisy(0.8, 0.05, 10)), watch=WatchSpec(kl=0.5))
    assert found(limited)["kl_runaway"]["limit"] == 0.5


def test_a_gap_and_a_drift_that_run_away() -> None:
    assert found(seen(gap_mean=stepped(0.02, 0.4, noise=0.002)))["gap_runaway"]["gap"] > 0.3
    drifting = seen(drift_mean=stepped(0.1, 1.2), weight_ess=stepped(0.9, 0.2))
    assert found(drifting)["gap_runaway"]["ess"] < 0.3


def test_steps_that_are_too_large() -> None:
    assert found(seen(moved=stepped(0.1, 2.0)))["large_steps"]["moved"] > 1.5


def test_one_reply_for_every_prompt() -> None:
    evidence = found(seen(same_reply=SAME, reward=noisy(0.5, 0.05, 20)))["one_reply"]
    assert evidence["share"] > 0.95 and evidence["prompts"] == 40.0


def test_a_policy_that_is_lost_within_the_first_steps() -> None:
    """What a learning rate of 0.02 does to the shipped base: nothing is left after three steps."""
    rewards = [0.55, 0.53, 0.61, 0.11, 0.05, *[0.0] * 20]
    lost = seen(reward=rewards, reward_max=[2 * reward for reward in rewards], reward_spread=[0.4] * 4 + [0.0] * 21)
    assert found(lost)["falling_reward"]["steps"] == 20.0


def test_steps_without_a_pass_say_nothing_of_drift() -> None:
    drifting = {"entropy": [0.3, 0.0] * 10, "drift_mean": [1.2, 0.0] * 10}
    assert found(seen(**drifting))["gap_runaway"]["drift"] == 1.2
    assert found(seen(drift_mean=[1.2, math.nan] * 10))["gap_runaway"]["drift"] == 1.2, "nor where it is left out"


@given(st.lists(st.dictionaries(st.sampled_from(sorted(HEALTHY)), st.floats()), max_size=40), st.integers(0, 3))
@settings(max_examples=examples(50))
def test_no_metrics_break_a_detector(steps: list[dict[str, float]], changed: int) -> None:
    course = Course()
    for number, metrics in enumerate(steps, 1):
        course.see(number, f"e{number // 15 * changed}", {"tokens": 1.0} | metrics)
    for evidence in found(Learning(course)).values():
        assert all(not math.isnan(value) for value in evidence.values())


@pytest.mark.parametrize(("groups", "size"), [(8, 8), (1, 16)])
def test_healthy_runs_raise_no_alarm(groups: int, size: int) -> None:
    """60 steps as the demo has them: what is allowed is one run in a hundred for each kind."""
    assert alarms(examples(12), steps=60, groups=groups, size=size, top=0.97) == []


def seen(**series: Sequence[float]) -> Learning:
    """A run of which some metrics are given; all others are those of a healthy step."""
    course, steps = Course(), max(map(len, series.values()))
    for step in range(steps):
        given = {name: values[step] for name, values in series.items()}
        course.see(step + 1, "e1", HEALTHY | given)
    return Learning(course)


def with_scores(learning: Learning, scores: Mapping[int, float], stderr: float = 0.05, prompts: int = 64) -> Learning:
    """The same with held-out scores by step."""
    return replace(learning, scores=tuple(HeldOutScore(n, score, stderr, prompts) for n, score in scores.items()))


def noisy(mean: float, deviation: float, steps: int, seed: int = 0) -> list[float]:
    """Independent values around a mean."""
    draw = random.Random(seed)
    return [draw.gauss(mean, deviation) for _ in range(steps)]


def learned(seed: int, steps: int, groups: int, size: int, top: float) -> Iterator[Learning]:
    """What is seen at each step of a healthy run of binary rewards: it learns until it is right with probability
    ``top``, explores less the better it is, and is measured each ten steps."""
    draw, course = random.Random(seed), Course()
    scores: list[HeldOutScore] = []
    skill = draw.uniform(0.05, 0.5)
    for step in range(1, steps + 1):
        skill += (top - skill) * 0.06
        chances = [min(1.0, max(0.0, draw.gauss(skill, 0.2 * skill * (1 - skill)))) for _ in range(groups)]
        rewards = [[float(draw.random() < chance) for _ in range(size)] for chance in chances]
        entropy = 0.02 + 0.4 * (1 - skill)
        metrics = HEALTHY | {
            "reward": fmean(map(fmean, rewards)),
            "reward_max": fmean(map(max, rewards)),
            "reward_spread": fmean(map(pstdev, rewards)),
            "surprisal": max(0.0, draw.gauss(entropy, entropy / (groups * size) ** 0.5)),
            "length": draw.gauss(4 + 2 * skill, 1 / (groups * size) ** 0.5),
            "cut": sum(draw.random() < 0.02 for _ in range(groups * size)) / (groups * size),
            "drift_mean": abs(draw.gauss(0.08, 0.05)),
            "moved": abs(draw.gauss(0.08, 0.05)),
            "first_prompts": float(groups),
            "same_reply": max(1 / (groups * size), draw.uniform(0.05, 0.4)),
        }
        course.see(step, "e1", metrics)
        if step % 10 == 0:
            right = [float(draw.random() < skill) for _ in range(64)]
            scores.append(HeldOutScore(step, fmean(right), pstdev(right) / 63**0.5, 64))
        yield Learning(course, tuple(scores), steps=steps, evaluations=steps // 10)


def alarms(runs: int, watch: WatchSpec | None = None, **run: int | float) -> list[str]:
    """The findings in so many healthy runs, each kind once a run."""
    made = []
    for seed in range(runs):
        known: set[str] = set()
        for learning in learned(seed, **run):  # type: ignore[arg-type]
            known |= set(found(replace(learning, watch=watch) if watch else learning))
        made += sorted(known)
    return made


SLOW = seen(length=falling(40, 200, noise=3.0), reward=noisy(0.4, 0.05, 40))
FALLEN = seen(reward=stepped(0.8, 0.1))
SAME = noisy(0.97, 0.005, 20)
CERTAIN = falling(0.4, 0.01, noise=0.005)
RISING = seen(reward=falling(0.3, 0.9))

NO_SIGN = {
    "a solved task is certain": seen(surprisal=CERTAIN, reward=falling(0.4, 1.0)[:20] + noisy(0.98, 0.01, 20)),
    # a game of dice: the best of a group is luckier than the mean, however certain the policy is
    "luck": seen(surprisal=CERTAIN, reward=noisy(0.4, 0.05, 40), reward_max=[0.9] * 40),
    "longer and better": seen(length=falling(40, 200, noise=3.0), reward=falling(0.2, 0.9)),
    "a few tokens cost nothing": seen(length=falling(2, 8, noise=0.2), reward=noisy(0.4, 0.05, 40)),
    "the task file allows length": replace(SLOW, watch=WatchSpec(length=10.0)),
    "games become longer as both sides learn": replace(SLOW, alone=False),
    "held-out scores have noise": with_scores(RISING, {0: 0.5, 20: 0.8, 40: 0.72}),
    "held-out rises": with_scores(RISING, {0: 0.5, 40: 0.9}),
    "one held-out score": with_scores(RISING, {40: 0.1}),
    "no held-out score": with_scores(RISING, {}),
    "few held-out prompts": with_scores(RISING, {0: 1.0, 40: 0.0}, 0.0, prompts=4),
    "opponents learn, too": replace(FALLEN, alone=False),
    "harder rows are drawn": replace(FALLEN, uniform=False),
    "significant, and a quarter of what single rewards differ by": seen(reward=stepped(0.80, 0.70, noise=0.001)),
    "a distance that grows steadily": seen(kl=falling(0.0, 4.0), reward=falling(0.2, 0.9)),
    "near 0 a distance doubles often": seen(kl=[1e-4 * 1.5**step for step in range(15)]),
    "a small copy of the base, from the beginning": seen(gap_mean=noisy(0.12, 0.01, 40)),
    "two steps of five are no runaway": seen(drift_mean=[*noisy(0.1, 0.02, 38), 3.0, 3.0]),
    "two large steps at the beginning": seen(moved=[2.0, 2.0, *noisy(0.1, 0.02, 20)]),
    "one prompt has one right answer": seen(same_reply=SAME, first_prompts=[1.0] * 20),
    "ten prompts may have the same right answer": seen(same_reply=SAME, first_prompts=[2.0] * 20),
    "replies differ": seen(same_reply=noisy(0.6, 0.05, 20)),
    "what the task ignores": replace(seen(moved=[2.0] * 20), watch=WatchSpec(ignore=("large_steps",))),
}


@pytest.mark.parametrize("why", NO_SIGN)
def test_what_is_no_sign(why: str) -> None:
    assert not found(NO_SIGN[why])
