"""Where a policy goes on after its files were damaged, and what is left of the steps above."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from marlaas.engine.errors import AdapterError
from marlaas.engine.home.paths import Home
from marlaas.engine.machine.services import Services
from marlaas.engine.queue.scheduler.scheduler import Ending, blocked, paused
from marlaas.engine.spec.task import EvalSpec
from marlaas.engine.train.publishing import Retention

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


async def test_a_damaged_file_costs_its_step(world: World) -> None:
    assert await ends(world) == Ending("done")
    newest = state_files(world)[-1]
    newest.write_bytes(b"damaged")
    beside = newest.with_name("of-a-crash.safetensors")
    beside.write_bytes(b"uncommitted")
    assert await ends(world) == Ending("done")
    check_history(world)
    lost = world.home.lost / "task-1"
    assert {path.name: path.read_bytes() for path in lost.iterdir()} == {
        newest.name: b"damaged",
        beside.name: b"uncommitted",
    }
    *_, told = [row["message"] for row in world.query("SELECT message FROM events WHERE kind = 'recovery'")]
    assert str(lost) in told and newest.name in told and beside.name in told
    assert [row["state"] for row in world.query("SELECT state FROM versions WHERE number = 5 ORDER BY id")] == [
        "void",
        "committed",
    ]


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


def out_of_the_home(world: World, newest: Path) -> Callable[[], object]:
    outside = world.home.root.with_name(f"{world.home.root.name}-outside")
    newest.parent.rename(outside)
    newest.parent.symlink_to(outside)

    def back() -> None:
        newest.parent.unlink()
        outside.rename(newest.parent)

    return back


@pytest.mark.parametrize("away", [folder_away, adapters_away, not_mounted, unreadable, out_of_the_home])
@pytest.mark.parametrize("new_engine", [False, True])
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
    assert await ends(world) == paused("No memory for another policy.", again=True)
    assert not world.query("SELECT 1 FROM versions WHERE state = 'void'")


@pytest.mark.parametrize("spelled", ["moved", "moved/../moved", "link"])
async def test_a_moved_home_goes_on_however_it_is_spelled(tmp_path: Path, spelled: str) -> None:
    world = World(tmp_path / "home", replace(SPEC, steps=3, eval=EvalSpec(every=0, prompts=3)))
    assert await ends(world) == Ending("done")
    world.store.close()
    (tmp_path / "home").rename(tmp_path / "moved")
    (tmp_path / "link").symlink_to("moved")
    world.home, world.spec = Home(tmp_path / spelled), replace(world.spec, steps=SPEC.steps)
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


async def test_a_task_short_of_room_waits_before_it_writes(world: World) -> None:
    shortage = ""

    async def services() -> Services:
        return replace(await World.services(world), shortage=lambda: shortage)

    world.services = services  # type: ignore[method-assign]
    running = asyncio.ensure_future(world.go())
    while not world.query("SELECT 1 FROM steps WHERE number = 2"):
        await asyncio.sleep(0)
    shortage = "waiting for room on the disk: too little is free"
    assert await running == blocked(shortage)
    before = len(world.query("SELECT 1 FROM steps"))
    assert before < SPEC.steps and await ends(world) == blocked(shortage)
    assert len(world.query("SELECT 1 FROM steps")) == before
    shortage = ""
    assert await ends(world) == Ending("done")
    check_history(world)
