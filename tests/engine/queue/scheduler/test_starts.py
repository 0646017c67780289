"""A task that begins from another task's version: which one it is, how long it is kept, and where it cannot be."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from marlaas.engine.adapters.export import WEIGHTS, write_peft_folder
from marlaas.engine.adapters.statefile import checksum, read_state
from marlaas.engine.errors import AdapterError, ConfigError
from marlaas.engine.queue.scheduler.commands import delete_versions, roll_back
from marlaas.engine.queue.scheduler.scheduler import Ending, run_task
from marlaas.engine.queue.submission.references import find_starts
from marlaas.engine.queue.submission.taskfile import load, submission
from marlaas.engine.spec.task import EvalSpec, KeepSpec, PolicySpec, TaskSpec, parse
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.submissions import submit
from marlaas.engine.train.publishing import Retention

from ...train.test_learning import SPEC
from .world import World

TASK = """
tenant = "lab"
name = "later"
environment = "sums"
steps = 5
[policy]
rank = 1
alpha = 1
start = "./taken"
[train]
groups_per_step = 2
group_size = 2
max_staleness = 1
[sampling]
max_tokens = 3
max_episode_tokens = 9
[eval]
every = 0
prompts = 3
"""
FIRST = replace(SPEC, eval=EvalSpec(every=0, prompts=3), keep=KeepSpec(every=1))


@pytest.fixture
async def world(tmp_path: Path) -> World:
    """Task 1 is done and all of its versions are kept."""
    world = World(tmp_path, FIRST)
    assert await asyncio.wait_for(world.go(), 50) == Ending("done")
    world.store.tasks.set_state(world.task, "done")
    return world


def later(start: str, **changes: object) -> TaskSpec:
    spec = replace(FIRST, name="later", keep=KeepSpec(), policy=PolicySpec(rank=1, start=start))
    return replace(spec, **changes)  # type: ignore[arg-type]


def put(world: World, spec: TaskSpec) -> int:
    """Submit it as the app does."""
    with Reader(world.home.database) as reader:
        (number,) = submit(world.home.database, find_starts([submission(spec)], reader))
    return number


async def run(world: World, task: int, spec: TaskSpec) -> Ending:
    world.task, world.spec = task, spec
    return await asyncio.wait_for(world.go(), 50)


def adapter(world: World, task: int, number: int) -> np.ndarray:
    (version,) = (version for version in world.store.versions.on_disk(task) if version.number == number)
    state = read_state(Path(version.path))
    assert state.header.step == number and checksum(state.adapter) == version.checksum
    return state.adapter["m.lora_A"]


@pytest.mark.parametrize(("start", "number"), [("1@2", 2), ("1", 5), ("1@last", 5), ("1@best", 5), ("sums@4", 4)])
async def test_version_0_is_that_version_with_a_new_optimizer(world: World, start: str, number: int) -> None:
    spec = later(start, eval=EvalSpec(every=0, prompts=3))
    task = put(world, spec)
    assert await run(world, task, spec) == Ending("done")
    assert (adapter(world, task, 0) == adapter(world, 1, number)).all()
    (first,) = world.query("SELECT resumable, checksum FROM versions WHERE policy = 2 AND number = 0")
    assert first["resumable"] == 0 and first["checksum"] == world.store.versions.start(task, start).checksum  # type: ignore[union-attr]
    told = [row["message"] for row in world.query(f"SELECT message FROM events WHERE task = {task} AND kind = 'task'")]
    assert told == [f"Training begins from task-1/policy-v{number}-i1, with a new optimizer."]


async def test_a_series_begins_with_the_version_that_was_given(world: World) -> None:
    """The environment is edited when version 0 is no more the current one: it is measured again, as itself."""
    spec = later("1@3", eval=EvalSpec(every=2, prompts=3))
    task = put(world, spec)
    assert await run(world, task, spec) == Ending("done")
    world.environments.version = "e2"
    spec = replace(spec, steps=6)
    assert await run(world, task, spec) == Ending("done")
    measured = world.query("SELECT step, version FROM evals WHERE policy = 2 AND environment_version = 'e2'")
    assert 0 in [row["step"] for row in measured]
    assert not [name for name in world.workers.sampler.versions if name.endswith("blank")]


async def test_a_task_whose_files_are_lost_begins_where_it_began(world: World) -> None:
    spec = later("1@2")
    task = put(world, spec)
    assert await run(world, task, spec) == Ending("done")
    for version in world.store.versions.on_disk(task):
        Path(version.path).write_bytes(b"damaged")
    assert await run(world, task, spec) == Ending("done")
    assert (adapter(world, task, 0) == adapter(world, 1, 2)).all()


async def test_the_version_is_kept_while_the_task_waits_and_no_longer(world: World) -> None:
    task = put(world, later("1@2"))
    assert world.store.versions.wanted(1) == {2: task}
    await Retention(world.store, 1, 1).retain(set())
    assert {version.number for version in world.store.versions.on_disk(1)} == {2, 4, 5}
    for number in (None, 2):
        with pytest.raises(ConfigError, match=f"Task {task} is to begin from version 2 of task 1, or plays with it"):
            await delete_versions(world.store, 1, number)
    world.store.tasks.set_state(task, "cancelled")
    assert world.store.versions.wanted(1) == {}
    world.store.tasks.set_state(task, "queued")
    assert await run(world, task, later("1@2")) == Ending("done")
    assert world.store.versions.wanted(1) == {}
    await Retention(world.store, 1, 1).retain(set())
    assert {version.number for version in world.store.versions.on_disk(1)} == {4, 5}


async def test_a_way_back_takes_no_waiting_task_its_start(world: World) -> None:
    task = put(world, later("1@4"))
    with pytest.raises(AdapterError, match=f"Task {task} is to begin from version 4, or plays with it"):
        await roll_back(world.store, 1, 2)
    await roll_back(world.store, 1, 4)


async def test_a_start_that_is_gone_or_damaged_pauses_the_task(world: World) -> None:
    spec = later("1@2")
    task = put(world, spec)
    (version,) = (version for version in world.store.versions.on_disk(1) if version.number == 2)
    Path(version.path).unlink()
    ending = await run(world, task, spec)
    assert ending.state == "paused" and "task-1/policy-v2-i1" in ending.reason.words
    assert not world.query("SELECT 1 FROM versions WHERE policy = 2")


async def test_a_start_that_nobody_looked_up_is_not_taken_for_none(world: World) -> None:
    spec = later("1@2")
    (task,) = submit(world.home.database, [submission(spec)])
    ending = await run_task(task, spec, world, lambda learner: None)  # type: ignore[arg-type]
    assert ending.state == "failed" and "Nobody looked up the version '1@2'" in ending.reason.words


@pytest.mark.parametrize(
    ("start", "policy", "words"),
    [
        ("1@9", PolicySpec(rank=1), "has no version '9' on disk"),
        ("7", PolicySpec(rank=1), "There is no adapter '7'"),
        ("1@2", PolicySpec(rank=8), "whose rank is 1, but its own is 8"),
        ("1@2", PolicySpec(rank=1, alpha=2.0), "whose alpha is 32, but its own is 2"),
    ],
)
async def test_what_does_not_fit_is_refused_at_submission(
    world: World, start: str, policy: PolicySpec, words: str
) -> None:
    with pytest.raises((AdapterError, ConfigError), match=words):
        put(world, later(start, policy=replace(policy, start=start)))


def test_without_a_home_there_is_no_version() -> None:
    assert find_starts([submission(FIRST)], None) == [submission(FIRST)]
    with pytest.raises(AdapterError, match="There is no adapter '1'"):
        find_starts([submission(later("1"))], None)


async def test_an_exported_folder_is_a_start_too(world: World, tmp_path: Path) -> None:
    """The version that it came from may be gone, and version 0 of the task is kept though nothing asks for it."""
    (version,) = (version for version in world.store.versions.on_disk(1) if version.number == 3)
    folder = tmp_path / "taken"
    folder.mkdir()
    write_peft_folder(folder, read_state(Path(version.path)), Path("base"), "sums")
    weights = adapter(world, 1, 3)
    await delete_versions(world.store, 1, None)
    (tmp_path / "later.toml").write_text(TASK)
    (later,) = load(tmp_path / "later.toml")
    assert later.spec.to_json()["policy"]["start"] == str(folder)
    (task,) = submit(world.home.database, find_starts([later], None))
    spec = parse(later.spec.to_json(), "later")
    assert await run(world, task, spec) == Ending("done")
    assert (adapter(world, task, 0) == weights).all()
    with pytest.raises(ConfigError, match=r"taken, whose alpha is 1, but its own is 32\. Write `alpha = 1`"):
        find_starts([submission(replace(spec, policy=replace(spec.policy, alpha=32.0)))], None)


async def test_a_folder_that_marlaas_did_not_write_is_refused(tmp_path: Path) -> None:
    for folder, words in ((tmp_path, "does not say which base it fits"), (tmp_path / "none", "cannot be read")):
        if folder.exists():
            save_file({"base_model.model.m.lora_A.weight": np.zeros((1, 8), np.float32)}, folder / WEIGHTS)
        with pytest.raises(AdapterError, match=words):
            find_starts([submission(later(str(folder)))], None)
