"""Commands: what was asked for is done, or the outcome says why not."""

from __future__ import annotations

import asyncio
from pathlib import Path

from marlaas.engine.errors import EnvironmentMissing
from marlaas.engine.queue.scheduler.commands import Commands
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.submissions import command
from marlaas.engine.store.tasks import Tenant

from ...train.test_learning import SPEC
from .world import World


async def outcome(world: World, stops: list[str] | None = None) -> str:
    """Carry out the one command that waits."""

    async def end_run(task: int) -> None:
        """Nothing runs."""

    async def reload(plugin: str) -> None:
        """There are no plugins."""

    (waiting,) = world.store.tasks.new_commands()
    stop = (stops if stops is not None else []).append
    await Commands(world.store, end_run, lambda: stop("stop"), lambda: stop("drain"), reload).carry_out(waiting)
    (row,) = world.query(f"SELECT outcome FROM commands WHERE id = {waiting.id} AND done IS NOT NULL")
    return str(row["outcome"])


async def test_a_tenant_is_set_or_the_outcome_says_why_not(tmp_path: Path) -> None:
    world = World(tmp_path, SPEC)
    command(world.home.database, "tenant", None, name="bio", weight=2, tasks=3)
    assert await outcome(world) == "" and world.store.tenants.get("bio") == Tenant(2, 3)
    command(world.home.database, "tenant", None, name="bio", weight=-1)
    assert "cannot be -1" in await outcome(world) and world.store.tenants.get("bio") == Tenant(2, 3)


async def test_another_priority_is_kept_or_the_outcome_says_why_not(tmp_path: Path) -> None:
    world = World(tmp_path, SPEC)
    tasks = world.store.tasks
    for state, priority, sentence in (
        ("queued", 5, ""),
        ("paused", -2, ""),
        ("queued", 5000, "queue.priority"),
        ("queued", "high", "queue.priority"),
        ("done", 1, "A task that is done cannot be given another priority."),
    ):
        tasks.set_state(world.task, state)
        command(world.home.database, "priority", world.task, priority=priority)
        assert sentence in await outcome(world) and tasks.state(world.task) == state
        (row,) = world.query("SELECT priority FROM tasks")
        kept = tasks.spec(world.task).queue.priority
        assert row["priority"] == kept == (-2 if sentence else priority)


async def test_a_task_goes_where_a_command_leads(tmp_path: Path) -> None:
    world = World(tmp_path, SPEC)
    for kind, state, sentence in (
        ("pause", "paused", ""),
        ("retry", "paused", "A task that is paused cannot be retried. `marlaas resume` goes on with it."),
        ("resume", "queued", ""),
        ("cancel", "cancelled", ""),
        (
            "cancel",
            "cancelled",
            "A task that is cancelled cannot be cancelled. Only submitted, queued, blocked, running, paused ones can.",
        ),
        ("retry", "queued", ""),
    ):
        command(world.home.database, kind, world.task)
        assert await outcome(world) == sentence
        assert world.store.tasks.state(world.task) == state


async def test_stop_and_drain_end_the_engine(tmp_path: Path) -> None:
    world, stops = World(tmp_path, SPEC), list[str]()
    for kind in ("stop", "drain"):
        command(world.home.database, kind)
        assert await outcome(world, stops) == ""
    assert stops == ["stop", "drain"]


async def test_a_plugin_is_reloaded_once_while_other_commands_go_on(tmp_path: Path) -> None:
    world, asked, imported = World(tmp_path, SPEC), list[str](), asyncio.Event()

    async def reload(plugin: str) -> None:
        asked.append(plugin)
        await imported.wait()
        if plugin == "missing":
            raise EnvironmentMissing("There is no plugin 'missing'.")

    async def end_run(task: int) -> None:
        """Nothing runs."""

    commands = Commands(world.store, end_run, lambda: None, lambda: None, reload)
    sent = [command(world.home.database, "reload", None, plugin=plugin) for plugin in ("games", "missing")]
    sent.append(command(world.home.database, "pause", world.task))
    for _ in range(2):  # the engine looks again while they are under way
        for waiting in world.store.tasks.new_commands():
            await commands.carry_out(waiting)
    with Reader(world.home.database) as reader:
        assert reader.command_outcomes(sent) == {sent[2]: ""}
        imported.set()
        while world.store.tasks.new_commands():
            await asyncio.sleep(0)
        assert reader.command_outcomes(sent) == {sent[0]: "", sent[1]: "There is no plugin 'missing'.", sent[2]: ""}
    assert asked == ["games", "missing"]
