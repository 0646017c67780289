"""Names of versions: given and taken by commands, and what has a name does not go."""

from __future__ import annotations

from pathlib import Path

import pytest

from marlaas.engine.errors import AdapterError, ConfigError
from marlaas.engine.queue.scheduler.commands import delete_versions, name_version, roll_back, unname
from marlaas.engine.store.submissions import command

from ...train.test_learning import SPEC
from ...train.test_publishing import fill
from .test_commands import outcome
from .world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, SPEC)


async def test_commands_give_and_take_names(world: World) -> None:
    fill(world, [None, None])
    tenant = world.store.tasks.spec(world.task).tenant
    command(world.home.database, "name", world.task, name="prod", version=1)
    assert await outcome(world) == ""
    assert list(world.store.served.names(tenant)) == ["prod"]
    command(world.home.database, "unname", None, tenant=tenant, name="prod")
    assert await outcome(world) == "" and not world.store.served.names(tenant)
    command(world.home.database, "unname", None, tenant=tenant, name="prod")
    assert "has given no version the name 'prod'" in await outcome(world)


@pytest.mark.parametrize("name", ["", "17", "1st", "base", "Base", "a b", "a/b", "a@1", "x" * 65, "é", None, 3])
async def test_names_that_cannot_be(world: World, name: object) -> None:
    fill(world, [None])
    with pytest.raises(ConfigError, match="cannot have the name"):
        name_version(world.store, world.task, name, 0)


async def test_a_version_that_is_not_there(world: World) -> None:
    fill(world, [None])
    with pytest.raises(AdapterError, match="has no version 7 on disk"):
        name_version(world.store, world.task, "prod", 7)
    with pytest.raises(ConfigError):
        unname(world.store, None, {})


async def test_what_has_a_name_stays(world: World) -> None:
    retention, folder = fill(world, [None] * 5)
    name_version(world.store, world.task, "prod", 1)
    await retention.retain(set())
    assert sorted(path.name for path in folder.iterdir()) == ["v1", "v3", "v4"]
    world.store.tasks.set_state(world.task, "done")
    with pytest.raises(ConfigError, match=r"Version 1 .* under the name 'prod'.*adapters name prod --remove"):
        await delete_versions(world.store, world.task, None)
    assert sorted(path.name for path in folder.iterdir()) == ["v1", "v3", "v4"]
    unname(world.store, world.store.tasks.spec(world.task).tenant, "prod")
    await delete_versions(world.store, world.task, None)
    assert not folder.exists()


async def test_what_a_client_uses_stays_until_it_has_done(world: World) -> None:
    retention, folder = fill(world, [None] * 5)
    versions = {version.number: version for version in world.store.versions.on_disk(world.task)}
    with world.store.served.hold(versions[0].id):
        await retention.retain(set())
        assert (folder / "v0").exists() and not (folder / "v1").exists()
    await retention.retain(set())
    assert not (folder / "v0").exists()


async def test_nothing_with_a_name_becomes_void(world: World) -> None:
    fill(world, [None] * 4)
    name_version(world.store, world.task, "prod", 3)
    world.store.tasks.set_state(world.task, "paused")
    with pytest.raises(AdapterError, match="Version 3 is served to clients under the name 'prod'"):
        await roll_back(world.store, world.task, 2)
