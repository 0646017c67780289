"""Where a policy begins or goes on: damaged files, files out of reach, states of another base, limits left to auto."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from marlaas.engine.adapters.statefile import read_state
from marlaas.engine.errors import AdapterError
from marlaas.engine.fairness.line import Ledger, Line
from marlaas.engine.home.paths import Home
from marlaas.engine.machine.trainers import SharedTrainer, TrainerPool
from marlaas.engine.models.find import load_base
from marlaas.engine.queue.scheduler.scheduler import Ending
from marlaas.engine.spec.automatic import BaseTraits
from marlaas.engine.spec.task import EvalSpec, PolicySpec, SamplingSpec, TaskSpec, TrainSpec
from marlaas.engine.train.opening import open_policy
from marlaas.engine.train.publishing import Retention
from marlaas.engine.trainer.protocol import PolicyConfig, StepResult
from marlaas.engine.trainer.torch_trainer import TorchTrainer

from ..queue.scheduler.world import World
from .test_learning import SPEC, check_history


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, replace(SPEC, eval=EvalSpec(every=0, prompts=3)))


async def ends(world: World) -> Ending:
    return await asyncio.wait_for(world.go(), 50)


def state_files(world: World) -> list[Path]:
    return [Path(version.path) for version in world.store.versions.on_disk(world.task)]


def measured(world: World) -> int:
    """How many versions have a score: 1 while the second is being measured."""
    return len(world.query("SELECT 1 FROM evals"))


@pytest.mark.parametrize("new_engine", [False, True])
async def test_a_policy_whose_files_are_all_damaged_begins_anew(world: World, new_engine: bool) -> None:
    assert await ends(world) == Ending("done")
    for path in state_files(world):
        path.write_bytes(b"damaged")
    if new_engine:
        world.restart()
    assert await ends(world) == Ending("done")
    check_history(world)
    names = [row["name"] for row in world.query("SELECT name FROM versions")]
    assert len(set(names)) == len(names) == 2 * (SPEC.steps + 1)


async def test_groups_whose_tokens_were_given_up_are_played_again(world: World) -> None:
    """They wait again where the steps are lost that had consumed them, but there is nothing left to train on."""
    assert await ends(world) == Ending("done")
    await Retention(world.store, world.task, 1, token_steps=1).retain(set())
    for path in state_files(world):
        path.write_bytes(b"damaged")
    assert await ends(world) == Ending("done")
    check_history(world)
    assert not world.query("SELECT 1 FROM groups WHERE split = 'train' AND shrunk")


async def test_steps_above_an_old_survivor_are_void(world: World) -> None:
    """The best version may be older than the two that are kept to go on from."""
    # a deterministic task leaves no evaluation out where steps are quick
    train = replace(world.spec.train, deterministic=True)
    world.spec = replace(world.spec, train=train, eval=EvalSpec(every=2, prompts=3))
    world.environments.score = lambda spec: float(measured(world) == 1) if spec.split == "eval" else None
    assert await ends(world) == Ending("done")
    best, *newest = state_files(world)
    assert "-v2-" in best.name
    for path in newest:
        path.unlink()
    assert await ends(world) == Ending("done")
    check_history(world)


Away = Callable[[World, Path], Callable[[], object]]
"""Puts a newest file out of reach, and returns how it is brought back."""


def folder_away(world: World, newest: Path) -> Callable[[], object]:
    newest.parent.rename(world.home.root / "away")
    return lambda: (world.home.root / "away").rename(newest.parent)


def adapters_away(world: World, newest: Path) -> Callable[[], object]:
    world.home.adapters.rename(world.home.root / "away")
    return lambda: (world.home.root / "away").rename(world.home.adapters)


def not_mounted(world: World, newest: Path) -> Callable[[], object]:
    back = folder_away(world, newest)
    newest.parent.mkdir()
    return back


def unreadable(world: World, newest: Path) -> Callable[[], object]:
    newest.rename(newest.parent / "aside")
    newest.mkdir()  # whoever one is, the system refuses to read it

    def back() -> None:
        newest.rmdir()
        (newest.parent / "aside").rename(newest)

    return back


@pytest.mark.parametrize(
    ("away", "new_engine"), [(folder_away, False), (adapters_away, True), (not_mounted, True), (unreadable, False)]
)
async def test_what_cannot_be_read_is_waited_for_and_nothing_is_lost(
    world: World, away: Away, new_engine: bool
) -> None:
    world.spec = replace(world.spec, steps=3)
    assert await ends(world) == Ending("done")
    world.spec = replace(world.spec, steps=SPEC.steps)
    names = [path.name for path in state_files(world)]
    back = away(world, state_files(world)[-1])
    if new_engine:
        world.home.create()
        world.restart()
    for _ in range(2):
        ending = await ends(world)
        assert ending.state == "queued" and ending.reason.words.startswith("waiting for its adapters: ")
    assert not world.query("SELECT 1 FROM versions WHERE state = 'void'")
    back()
    assert [path.name for path in state_files(world)] == names and all(path.is_file() for path in state_files(world))
    before = len(world.query("SELECT 1 FROM versions"))
    assert await ends(world) == Ending("done")
    check_history(world)
    assert len(world.query("SELECT 1 FROM versions")) == before + SPEC.steps - 3 and not world.home.lost.exists()


async def test_a_folder_that_goes_away_under_a_run_is_not_made_again(world: World) -> None:
    running = asyncio.ensure_future(world.go())
    while not world.query("SELECT 1 FROM steps WHERE number = 2"):
        await asyncio.sleep(0)
    back = adapters_away(world, state_files(world)[-1])
    ending = await asyncio.wait_for(running, 50)
    assert ending.state == "queued" and "is not there" in ending.reason.words
    assert not world.home.adapters.exists()
    back()
    assert await ends(world) == Ending("done")
    check_history(world)
    assert not world.query("SELECT 1 FROM versions WHERE state = 'void'")


async def test_a_trainer_that_cannot_open_a_file_says_nothing_of_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await ends(world) == Ending("done")

    async def refuse(*_: object) -> None:
        raise AdapterError("No memory for another policy.")

    monkeypatch.setattr(world.workers.trainer, "open", refuse)
    assert await ends(world) == Ending("paused", "No memory for another policy.", again=True)
    assert not world.query("SELECT 1 FROM versions WHERE state = 'void'")


async def test_a_moved_home_goes_on_through_a_link_to_it(tmp_path: Path) -> None:
    world = World(tmp_path / "home", replace(SPEC, steps=3, eval=EvalSpec(every=0, prompts=3)))
    assert await ends(world) == Ending("done")
    world.store.close()
    (tmp_path / "home").rename(tmp_path / "moved")
    (tmp_path / "link").symlink_to("moved")
    world.home, world.spec = Home(tmp_path / "link"), replace(world.spec, steps=SPEC.steps)
    world.restart()
    assert await ends(world) == Ending("done")
    check_history(world)
    assert len(world.query("SELECT 1 FROM versions")) == SPEC.steps + 1 and not (tmp_path / "moved/lost+found").exists()
    names = {row["path"] for row in world.query("SELECT path FROM versions WHERE state = 'committed'")}
    files = {path.relative_to(tmp_path / "moved").as_posix() for path in (tmp_path / "moved").rglob("*.safetensors")}
    assert names == files


async def test_an_engine_on_a_copy_leaves_the_original_alone(tmp_path: Path) -> None:
    world = World(tmp_path / "home", replace(SPEC, steps=3, eval=EvalSpec(every=0, prompts=3)))
    assert await ends(world) == Ending("done")
    world.store.close()
    before = {path: path.read_bytes() for path in (tmp_path / "home/adapters").rglob("*") if path.is_file()}
    shutil.copytree(tmp_path / "home", tmp_path / "copy")
    world.home, world.spec = Home(tmp_path / "copy"), replace(world.spec, steps=SPEC.steps)
    world.restart()
    assert await ends(world) == Ending("done")
    check_history(world)
    assert {path: path.read_bytes() for path in (tmp_path / "home/adapters").rglob("*") if path.is_file()} == before
    assert {path.name for path in before} - {path.name for path in (tmp_path / "copy").rglob("*.safetensors")}


REAL = replace(SPEC, train=replace(SPEC.train, learning_rate=1e-3))
NewTrainer = Callable[..., TorchTrainer]


@pytest.fixture
def new_trainer() -> Iterator[NewTrainer]:
    made: list[TorchTrainer] = []

    def new(fingerprint: str, largest_rank: int = 256) -> TorchTrainer:
        made.append(TorchTrainer(str(load_base("tiny").path), fingerprint, sync=False, largest_rank=largest_rank))
        return made[-1]

    yield new
    for trainer in made:
        trainer.shutdown()


async def test_a_state_of_another_base_is_void(tmp_path: Path, new_trainer: NewTrainer) -> None:
    world = World(tmp_path, REAL)
    services = replace(await world.services(), trainer=new_trainer("there"))
    policy = services.store.versions.policy(world.task, "policy", {})
    foreign = await open_policy(services, world.task, policy, "policy", REAL)
    opened = await open_policy(replace(services, trainer=new_trainer("here")), world.task, policy, "policy", REAL)
    assert [row["state"] for row in world.query("SELECT state FROM versions ORDER BY id")] == ["void", "committed"]
    assert opened.name != foreign.name and read_state(Path(opened.path)).header.base == "here"
    messages = [row["message"] for row in world.query("SELECT message FROM events WHERE kind = 'recovery'")]
    assert f"Version {foreign.name} cannot be used and is void: The state belongs to base model there" in messages[0]


async def test_a_rank_that_no_slot_takes_fails_its_task(tmp_path: Path, new_trainer: NewTrainer) -> None:
    world = World(tmp_path, replace(REAL, policy=PolicySpec(rank=2)))
    world.trainers = TrainerPool([SharedTrainer(new_trainer("here", largest_rank=1), Line(), Ledger())])
    ending = await asyncio.wait_for(world.go(), 50)
    assert ending.state == "failed" and not ending.again
    assert "but a slot takes 1 at most: lower `rank` in the task file" in ending.reason.words


LIMITS = SamplingSpec(max_tokens=10, max_episode_tokens=16)


def task(train: TrainSpec) -> TaskSpec:
    return TaskSpec("lab", "sums", "sums", train=train, sampling=LIMITS)


WIDE = BaseTraits(576, 256)
AUTO = replace(SPEC, steps=2, sampling=SamplingSpec(), eval=EvalSpec(every=0, prompts=2))


def world_of(root: Path, spec: TaskSpec = AUTO, seed: int = 0) -> World:
    world = World(root, spec, seed)
    world.traits = WIDE
    return world


def config(world: World) -> dict[str, Any]:
    (row,) = world.query(f"SELECT config FROM tasks WHERE id = {world.task}")
    return dict(json.loads(row["config"]))


def chosen(world: World) -> tuple[Any, ...]:
    sampling = config(world)["sampling"]
    return config(world)["train"]["learning_rate"], sampling["max_tokens"], sampling["max_episode_tokens"]


async def go(world: World) -> None:
    assert await asyncio.wait_for(world.go(), 50) == Ending("done")


async def test_a_task_is_trained_with_what_its_first_replies_ask_for(tmp_path: Path) -> None:
    world, opened = world_of(tmp_path), list[PolicyConfig]()
    opens = world.workers.trainer.open

    async def noted(policy: str, config: PolicyConfig, path: str, resume: bool) -> StepResult:
        opened.append(config)
        return await opens(policy, config, path, resume)

    world.workers.trainer.open = noted  # type: ignore[method-assign]
    await go(world)
    check_history(world)
    rate, most, whole = chosen(world)
    assert rate == 1.4e-4 and most % 32 == 0 and 32 <= most <= 128 and most <= whole <= 256
    events = [row["message"] for row in world.query("SELECT message FROM events WHERE kind = 'auto' ORDER BY id")]
    assert events[0] == "Chosen for this task by its base: train.learning_rate = 0.00014."
    assert "replies; they have" in events[1] and f"sampling.max_tokens = {most}" in events[1]
    spans = [span for row in world.query("SELECT spans FROM trajectories") for span in json.loads(row["spans"])]
    assert max(stop - start for start, stop, *_ in spans) <= most, "all groups and evaluations have the same limit"
    assert [one.denominator for one in opened] == [4.0 * 256, 4.0 * whole], "the loss divides by it from step 1 on"


async def test_whoever_plays_them_finds_the_same(tmp_path: Path) -> None:
    found = []
    for number, seed in enumerate((1, 2)):
        world = world_of(tmp_path / str(number), seed=seed)
        running = asyncio.ensure_future(world.go())
        if number:  # the engine dies while first replies are played, and once more after that
            for turns in (60, 200):
                for _ in range(turns):
                    await asyncio.sleep(0)
                running.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await running
                world.restart()
                running = asyncio.ensure_future(world.go())
        assert await asyncio.wait_for(running, 50) == Ending("done")
        found.append(chosen(world))
    assert found[0] == found[1]


async def test_the_numbers_of_the_author_are_left_alone(tmp_path: Path) -> None:
    limits = SamplingSpec(max_tokens=3, max_episode_tokens=9)
    world = world_of(tmp_path, replace(AUTO, sampling=limits, train=replace(AUTO.train, learning_rate=1e-5)))
    await go(world)
    assert chosen(world) == (1e-5, 3, 9)
    assert not world.query("SELECT * FROM events WHERE kind = 'auto'")
    (row,) = world.query("SELECT code, step FROM findings")
    assert row["code"] == "cut_replies", "it is only warned of"
