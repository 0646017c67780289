"""The loop around the detectors: told once, known to the next engine, gone with its step, and able to pause a task."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from marlaas.engine.environments.protocol import Answering, EpisodeOutcome, EpisodeSpec
from marlaas.engine.queue.scheduler.commands import Commands, roll_back
from marlaas.engine.queue.scheduler.scheduler import Ending, run_task
from marlaas.engine.spec.task import EvalSpec, TaskSpec, TrainSpec, WatchSpec
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.submissions import command
from marlaas.engine.train import watch, watch as course
from marlaas.engine.train.held_out import Constant
from marlaas.engine.train.watch import Watch, sentence
from marlaas.plugins.messages import Answer

from ...queue.scheduler.world import World
from ..test_learning import SPEC

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


@pytest.mark.parametrize("kill", [True, False], ids=["workers", "engine"])
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


async def test_no_timing_moves_a_pause_of_a_deterministic_run(tmp_path: Path) -> None:
    train = replace(CHEATED.train, deterministic=True, max_staleness=0)
    spec = replace(CHEATED, train=train, watch=WatchSpec(pause=("reward_hacking",), ignore=("cut_replies",)))
    made = []
    for seed in range(3):
        world = cheated(spec, tmp_path / str(seed))
        world.chance.random.seed(seed)
        assert (await run(world)).state == "paused"
        made.append(world.query("SELECT max(number) AS n FROM steps")[0]["n"])
    assert made == [12, 12, 12]


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


async def test_the_next_engine_sees_the_same_course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (course, watch):
        monkeypatch.setattr(module, "LATELY", 7)
    world = World(tmp_path, CHEATED)
    assert await run(world) == Ending("done")
    fed = course.Course()
    for row in world.query("SELECT number, environment_version FROM steps ORDER BY number"):
        metrics = world.query(f"SELECT name, value FROM metrics WHERE step = {row['number']}")
        fed.see(row["number"], row["environment_version"], {one["name"]: one["value"] for one in metrics})
    assert (await watching(world))._course == fed and fed.newest == STEPS and fed.seen == 7


async def test_a_locked_database_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, CHEATED)
    own = await watching(world)
    tries = list[Any]()

    async def patiently(write: Callable[[], Any]) -> Any:
        tries.append(write)
        return write()

    monkeypatch.setattr(world.store, "patiently", patiently)
    for step in range(1, 6):
        own.see(step, {"tokens": 1.0, "moved": 3.0})
    await own.look()
    assert len(tries) == 1 and isinstance(tries[0], partial) and len(rows(world)) == 1
