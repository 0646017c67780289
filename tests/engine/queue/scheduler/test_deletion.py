"""Adapters of a finished task leave the disk on request; their rows stay, and nobody else's go."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from marlaas.engine.errors import AdapterError, AdapterUnreachable, ConfigError
from marlaas.engine.queue.scheduler.commands import delete_versions
from marlaas.engine.queue.submission.taskfile import submission
from marlaas.engine.spec.task import TaskSpec
from marlaas.engine.store.store import Store
from marlaas.engine.store.submissions import command, submit
from marlaas.engine.store.versions import NewVersion

from ...train.test_learning import SPEC
from .test_scheduler import reaches, serving
from .world import World


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Two finished tasks with three versions each."""
    store = Store(tmp_path / "marlaas.db", "tiny")
    submit(tmp_path / "marlaas.db", [submission(TaskSpec("lab", name, "arithmetic")) for name in ("a", "b")])
    for task in (1, 2):
        folder = tmp_path / "adapters" / f"task-{task}"
        folder.mkdir(parents=True)
        policy = store.versions.policy(task, "policy", {})
        for number in range(3):
            path = folder / f"v{number}"
            path.write_bytes(b"x")
            version = NewVersion(number, f"task-{task}/v{number}", "sum", str(path), 1)
            if number:
                store.versions.commit_step(policy, version, [], 0.1, {})
            else:
                store.versions.commit_first(policy, version)
        store.tasks.set_state(task, "done")
    return store


def left(store: Store, tmp_path: Path, task: int) -> tuple[list[int], list[str]]:
    """Numbers that the store has, and files on the disk."""
    files = sorted(path.name for path in (tmp_path / "adapters" / f"task-{task}").glob("*"))
    return [version.number for version in store.versions.on_disk(task)], files


async def test_one_version_and_then_all(store: Store, tmp_path: Path) -> None:
    await delete_versions(store, 1, 1)
    assert left(store, tmp_path, 1) == ([0, 2], ["v0", "v2"])
    (tmp_path / "adapters" / "task-1" / "uncommitted.safetensors").write_bytes(b"x")
    await delete_versions(store, 1, None)
    assert left(store, tmp_path, 1) == ([], []) and not (tmp_path / "adapters" / "task-1").exists()
    assert left(store, tmp_path, 2) == ([0, 1, 2], ["v0", "v1", "v2"])
    for number in (None, 1):
        with pytest.raises(AdapterError, match="on disk"):
            await delete_versions(store, 1, number)
    store.close()


@pytest.mark.parametrize("state", ["submitted", "queued", "running", "paused"])
async def test_an_unfinished_task_keeps_its_adapters(store: Store, tmp_path: Path, state: str) -> None:
    store.tasks.set_state(1, state)
    with pytest.raises(ConfigError, match=f"Task 1 is {state}.*marlaas cancel 1"):
        await delete_versions(store, 1, None)
    assert left(store, tmp_path, 1) == ([0, 1, 2], ["v0", "v1", "v2"])
    store.close()


async def test_a_file_that_is_gone_or_cannot_go(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "adapters" / "task-1"
    (folder / "v0").unlink()
    (folder / "v1").unlink()
    (folder / "v1").mkdir()  # cannot be unlinked, whoever one is
    await delete_versions(store, 1, 0)
    with pytest.raises(AdapterError, match=r"v1: cannot be removed.*by hand"):
        await delete_versions(store, 1, 1)
    store.close()


async def test_a_folder_that_is_away_keeps_its_versions(store: Store, tmp_path: Path) -> None:
    """Its files would come back with it, and nobody would know them any more."""
    (tmp_path / "adapters").rename(tmp_path / "away")
    with pytest.raises(AdapterUnreachable, match="task-1: the folder is not there, so nothing can be deleted"):
        await delete_versions(store, 1, None)
    (tmp_path / "away").rename(tmp_path / "adapters")
    assert left(store, tmp_path, 1) == ([0, 1, 2], ["v0", "v1", "v2"])
    store.close()


async def test_the_engine_carries_it_out(tmp_path: Path) -> None:
    world = World(tmp_path, SPEC)
    async with serving(world, slots=1):
        await reaches(world, world.task, "done")
        sent = command(world.home.database, "delete", world.task)
        async with asyncio.timeout(50):
            while world.store.tasks.new_commands():
                await asyncio.sleep(0)
    assert world.query(f"SELECT outcome FROM commands WHERE id = {sent}") == [{"outcome": ""}]
    states = {row["state"] for row in world.query("SELECT state FROM versions")}
    assert states == {"pruned"} and not list(world.home.adapters.rglob("*.safetensors"))
