"""Commands: versions that are deleted, named, gone back to and begun from, more steps, priorities; refusals say why."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from marlaas.engine.adapters.statefile import checksum, read_state
from marlaas.engine.errors import AdapterError, AdapterUnreachable, ConfigError, EnvironmentMissing
from marlaas.engine.queue.scheduler.commands import Commands, delete_versions, extend, name_version, roll_back, unname
from marlaas.engine.queue.scheduler.scheduler import Ending
from marlaas.engine.queue.submission.references import find_starts
from marlaas.engine.queue.submission.taskfile import submission
from marlaas.engine.spec.task import EvalSpec, KeepSpec, PolicySpec, TaskSpec
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import Reason, Tenant
from marlaas.engine.store.store import Store
from marlaas.engine.store.submissions import command, submit
from marlaas.engine.store.versions import NewVersion
from marlaas.engine.train.publishing import Retention

from ...by_hand import change
from ...train.test_learning import SPEC, check_history
from ...train.test_publishing import fill
from .serving import answered, reaches, serving
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


@pytest.mark.parametrize("state", ["queued", "running", "paused"])
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


async def test_nothing_with_a_name_becomes_void(world: World) -> None:
    fill(world, [None] * 4)
    name_version(world.store, world.task, "prod", 3)
    world.store.tasks.set_state(world.task, "paused")
    with pytest.raises(AdapterError, match="Version 3 is served to clients under the name 'prod'"):
        await roll_back(world.store, world.task, 2)


EXACT = replace(SPEC, train=replace(SPEC.train, deterministic=True, max_staleness=0), eval=EvalSpec(every=0, prompts=3))


async def ended(task: int) -> None:
    """Nothing runs that would have to end."""


async def go(world: World, spec: TaskSpec) -> None:
    world.spec = spec
    assert (await asyncio.wait_for(world.go(), 50)).state == "done"
    world.store.tasks.set_state(world.task, "done")


def trained(world: World) -> list[object]:
    sql = "SELECT number, checksum FROM versions WHERE state != 'void' ORDER BY number"
    return [(row["number"], row["checksum"]) for row in world.query(sql)]


async def test_made_longer_is_long_from_the_start(tmp_path: Path) -> None:
    long = World(tmp_path / "long", replace(EXACT, steps=2 * EXACT.steps))
    await go(long, long.spec)
    short = World(tmp_path / "short", EXACT)
    await go(short, EXACT)
    await extend(short.store, short.task, 2 * EXACT.steps, ended)
    assert short.store.tasks.state(short.task) == "queued"
    await go(short, short.store.tasks.spec(short.task))
    check_history(short)
    assert trained(short) == trained(long) and len(trained(short)) == 2 * EXACT.steps + 1


async def test_the_engine_takes_up_a_task_that_runs_or_is_done(tmp_path: Path) -> None:
    world = World(tmp_path, EXACT)
    async with serving(world, 1):
        async with asyncio.timeout(50):
            while not world.store.tasks.steps_made(world.task):
                await asyncio.sleep(0)
        for steps in (EXACT.steps + 2, EXACT.steps + 5):
            assert await answered(world, "extend", world.task, steps=steps) == ""
            await reaches(world, world.task, "done")
    assert world.query("SELECT step FROM policies") == [{"step": EXACT.steps + 5}]
    told = [row["message"] for row in world.query("SELECT message FROM events WHERE message LIKE '%more steps%'")]
    assert told == [
        f"The task has 2 more steps, {EXACT.steps + 2} all told; it is queued.",
        f"The task has 3 more steps, {EXACT.steps + 5} all told; it is queued.",
    ]
    world.spec = world.store.tasks.spec(world.task)
    check_history(world)


@pytest.mark.parametrize("state", ["submitted", "queued", "paused"])
async def test_what_waits_goes_on_waiting(tmp_path: Path, state: str) -> None:
    world = World(tmp_path, EXACT)
    world.store.tasks.set_state(world.task, state, Reason(words="why it waits"))
    await extend(world.store, world.task, 50, ended)
    assert (world.store.tasks.state(world.task), world.store.tasks.reason(world.task)) == (state, "why it waits")
    assert world.store.tasks.spec(world.task).steps == 50
    await extend(world.store, world.task, 50, ended)  # an engine that died before it wrote the outcome
    assert world.query("SELECT steps FROM tasks") == [{"steps": 50}]


async def refused(world: World, steps: object, words: str) -> None:
    before = world.query("SELECT state, steps, config FROM tasks")
    with pytest.raises((ConfigError, AdapterError), match=words):
        await extend(world.store, world.task, steps, ended)
    assert world.query("SELECT state, steps, config FROM tasks") == before


async def test_more_is_a_larger_number(tmp_path: Path) -> None:
    world = World(tmp_path, EXACT)
    for steps in (EXACT.steps - 1, 0, -1, "9", None, True, 9.0):
        await refused(world, steps, f"has {EXACT.steps} steps and can only be given more")
    await refused(world, 10**9, "steps")


@pytest.mark.parametrize("state", ["failed", "cancelled"])
async def test_only_what_has_not_failed_is_extended(tmp_path: Path, state: str) -> None:
    world = World(tmp_path, EXACT)
    world.store.tasks.set_state(world.task, state)
    await refused(world, 50, f"A task that is {state} cannot be extended")


async def test_a_rate_that_has_begun_to_fall_does_not_rise_again(tmp_path: Path) -> None:
    falling = replace(EXACT, train=replace(EXACT.train, schedule="cosine"))
    world = World(tmp_path, falling)
    await extend(world.store, world.task, EXACT.steps + 1, ended)  # no step was made
    await go(world, world.store.tasks.spec(world.task))
    await refused(world, 50, f"falls .cosine. towards 0 at step {EXACT.steps + 1}")


async def test_steps_are_no_cure_for_what_ended_it(tmp_path: Path) -> None:
    world = World(tmp_path, EXACT)
    await go(world, EXACT)
    change(world.home.database, "UPDATE policies SET step = 3")
    world.store.tasks.set_state(world.task, "done", Reason(words="Nothing was left to learn."))
    await refused(world, 50, f"done at step 3 of {EXACT.steps}, before its last.*Nothing was left to learn")


async def test_a_target_that_was_reached_at_the_last_step(tmp_path: Path) -> None:
    world = World(tmp_path, replace(EXACT, eval=EvalSpec(every=0, prompts=3, target=-5.0)))
    await go(world, world.spec)
    await refused(world, 50, "has reached its target: it would end at once")


async def test_without_its_adapter_there_is_nothing_to_go_on_from(tmp_path: Path) -> None:
    world = World(tmp_path, EXACT)
    await go(world, EXACT)
    change(world.home.database, "UPDATE tasks SET base = 'other'")
    await refused(world, 50, "another base")
    change(world.home.database, "UPDATE tasks SET base = ''")
    await delete_versions(world.store, world.task, None)
    await refused(world, 50, "Its adapter is not on the disk")


KEPT = replace(SPEC, eval=EvalSpec(every=0, prompts=3), keep=KeepSpec(every=1))


async def done(tmp_path: Path, **changes: object) -> World:
    world = World(tmp_path, replace(KEPT, **changes))  # type: ignore[arg-type]
    assert await asyncio.wait_for(world.go(), 50) == Ending("done")
    world.store.tasks.set_state(world.task, "done")
    return world


def numbers(world: World, state: str) -> list[int]:
    return [row["number"] for row in world.query(f"SELECT number FROM versions WHERE state = '{state}' ORDER BY id")]


@pytest.mark.parametrize("number", [0, 2])
async def test_later_steps_are_made_again_under_other_names(tmp_path: Path, number: int) -> None:
    world = await done(tmp_path)
    await roll_back(world.store, world.task, number)
    assert world.store.tasks.state(world.task) == "queued"
    assert numbers(world, "void") == list(range(number + 1, SPEC.steps + 1))
    assert [row["step"] for row in world.query("SELECT step FROM policies")] == [number]
    (label,) = world.query("SELECT label FROM versions WHERE state = 'committed' ORDER BY number DESC LIMIT 1")
    assert label == {"label": "last"}
    assert await asyncio.wait_for(world.go(), 50) == Ending("done")
    check_history(world)
    names = [row["name"] for row in world.query("SELECT name FROM versions")]
    assert len(set(names)) == len(names) == 2 * SPEC.steps + 1 - number
    files = {str(path) for path in world.home.adapters.rglob("*.safetensors")}
    assert files == {version.path for version in world.store.versions.on_disk(world.task)}


async def test_without_moments_it_goes_on_with_a_new_optimizer(tmp_path: Path) -> None:
    world = await done(tmp_path)
    assert [row["resumable"] for row in world.query("SELECT resumable FROM versions WHERE number = 1")] == [0]
    await roll_back(world.store, world.task, 1)
    assert await asyncio.wait_for(world.go(), 50) == Ending("done")
    check_history(world)
    assert [row["restarted"] for row in world.query("SELECT restarted FROM versions WHERE number = 1")] == [1]
    told = [row["message"] for row in world.query("SELECT message FROM events WHERE kind = 'task'")]
    assert "goes on from task-1/policy-v1-i1, with a new optimizer" in told[0]


async def test_it_is_done_again_where_the_engine_died_before_it_ended(tmp_path: Path) -> None:
    world = await done(tmp_path)
    policy = world.store.versions.on_disk(world.task)[0].policy
    world.store.versions.void_after(policy, 2)
    await roll_back(world.store, world.task, 2)
    assert await asyncio.wait_for(world.go(), 50) == Ending("done")
    check_history(world)


@pytest.mark.parametrize("state", ["submitted", "queued", "running"])
async def test_a_task_that_may_run_is_refused(tmp_path: Path, state: str) -> None:
    world = await done(tmp_path)
    world.store.tasks.set_state(world.task, state)
    with pytest.raises(ConfigError, match=f"A task that is {state} cannot be rolled back. Only paused, done"):
        await roll_back(world.store, world.task, 2)


async def test_an_impossible_rollback_changes_nothing(tmp_path: Path) -> None:
    world = await done(tmp_path)
    third, fourth = (Path(version.path) for version in world.store.versions.on_disk(world.task)[3:5])
    payload, moments = fourth.read_bytes(), read_state(fourth).moment2["m.lora_A"].tobytes()
    place = payload.rindex(moments)  # adapter and moments are alike here; this is the last of them
    fourth.write_bytes(payload[:place] + bytes(len(moments)) + payload[place + len(moments) :])
    third.unlink()
    for number, words in (
        (9, "no version 9 on disk. On disk: 0, 1"),
        ("2", "no version 2"),
        (None, "None"),
    ):
        with pytest.raises(AdapterError, match=words):
            await roll_back(world.store, world.task, number)
    for number, words in ((3, "is gone"), (4, "is damaged: its checksum")):
        with pytest.raises(AdapterError, match=words):
            await roll_back(world.store, world.task, number)
    with pytest.raises(ConfigError, match="Version 5 of task 1 is its last"):
        await roll_back(world.store, world.task, 5)
    change(world.home.database, "UPDATE tasks SET base = 'other'")
    with pytest.raises(ConfigError, match="another base"):
        await roll_back(world.store, world.task, 2)
    assert world.store.tasks.state(world.task) == "done" and not numbers(world, "void")


@pytest.fixture
async def finished(tmp_path: Path) -> World:
    """Task 1 is done and all of its versions are kept."""
    return await done(tmp_path)


def later(start: str, **changes: object) -> TaskSpec:
    spec = replace(KEPT, name="later", keep=KeepSpec(), policy=PolicySpec(rank=1, alpha=1.0, start=start))
    return replace(spec, **changes)  # type: ignore[arg-type]


def put(world: World, spec: TaskSpec) -> int:
    """Submit it as the app does."""
    with Reader(world.home.database) as reader:
        (number,) = submit(world.home.database, find_starts([submission(spec)], reader, "tiny"))
    return number


async def run(world: World, task: int, spec: TaskSpec) -> Ending:
    world.task, world.spec = task, spec
    return await asyncio.wait_for(world.go(), 50)


def adapter(world: World, task: int, number: int) -> np.ndarray:
    (version,) = (version for version in world.store.versions.on_disk(task) if version.number == number)
    state = read_state(Path(version.path))
    assert state.header.step == number and checksum(state.adapter) == version.checksum
    return state.adapter["m.lora_A"]


@pytest.mark.parametrize(("start", "number"), [("1", 5), ("1@best", 5), ("sums@4", 4)])
async def test_version_0_is_that_version_with_a_new_optimizer(finished: World, start: str, number: int) -> None:
    spec = later(start, eval=EvalSpec(every=0, prompts=3))
    task = put(finished, spec)
    assert await run(finished, task, spec) == Ending("done")
    assert (adapter(finished, task, 0) == adapter(finished, 1, number)).all()
    (first,) = finished.query("SELECT resumable, checksum FROM versions WHERE policy = 2 AND number = 0")
    assert first["resumable"] == 0 and first["checksum"] == finished.store.versions.start(task, start).checksum  # type: ignore[union-attr]
    told = [
        row["message"] for row in finished.query(f"SELECT message FROM events WHERE task = {task} AND kind = 'task'")
    ]
    assert told == [f"Training begins from task-1/policy-v{number}-i1, with a new optimizer."]


async def test_a_task_whose_files_are_lost_begins_where_it_began(finished: World) -> None:
    spec = later("1@2")
    task = put(finished, spec)
    assert await run(finished, task, spec) == Ending("done")
    for version in finished.store.versions.on_disk(task):
        Path(version.path).write_bytes(b"damaged")
    assert await run(finished, task, spec) == Ending("done")
    assert (adapter(finished, task, 0) == adapter(finished, 1, 2)).all()


async def test_the_version_is_kept_while_the_task_waits_and_no_longer(finished: World) -> None:
    task = put(finished, later("1@2"))
    assert finished.store.versions.wanted(1) == {2: task}
    await Retention(finished.store, 1, 1).retain(set())
    assert {version.number for version in finished.store.versions.on_disk(1)} == {2, 4, 5}
    for number in (None, 2):
        with pytest.raises(ConfigError, match=f"Task {task} is to begin from version 2 of task 1, or plays with it"):
            await delete_versions(finished.store, 1, number)
    finished.store.tasks.set_state(task, "cancelled")
    assert finished.store.versions.wanted(1) == {}
    finished.store.tasks.set_state(task, "queued")
    assert await run(finished, task, later("1@2")) == Ending("done")
    assert finished.store.versions.wanted(1) == {}
    await Retention(finished.store, 1, 1).retain(set())
    assert {version.number for version in finished.store.versions.on_disk(1)} == {4, 5}


async def test_a_way_back_takes_no_waiting_task_its_start(finished: World) -> None:
    task = put(finished, later("1@4"))
    with pytest.raises(AdapterError, match=f"Task {task} is to begin from version 4, or plays with it"):
        await roll_back(finished.store, 1, 2)
    await roll_back(finished.store, 1, 4)


async def test_a_start_that_is_gone_or_damaged_pauses_the_task(finished: World) -> None:
    spec = later("1@2")
    task = put(finished, spec)
    (version,) = (version for version in finished.store.versions.on_disk(1) if version.number == 2)
    Path(version.path).unlink()
    ending = await run(finished, task, spec)
    assert ending.state == "paused" and "task-1/policy-v2-i1" in ending.reason.words
    assert not finished.query("SELECT 1 FROM versions WHERE policy = 2")
