"""Carries out the app's commands."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...adapters.statefile import MARK, read_expected
from ...errors import AdapterError, AdapterUnreachable, ConfigError, DatabaseLocked, MarlaasError, StoreError
from ...spec.task import TaskSpec, parse, served_name, tenant_change
from ...store.rows import FINISHED, Reason, ReasonCode
from ...store.store import Store
from ...store.submissions import API_SWITCHES, NODE_COMMANDS, YIELDS
from ...store.tasks import Command
from ...store.versions import Version
from ...train.evaluation import deciding
from ...train.held_out import reached, stalled
from ...train.publishing import Retention
from ..submission.transitions import next_state


async def delete_versions(store: Store, task: int, number: int | None, policy: str | None = None) -> None:
    """Delete all versions of a task, or those of one number or policy.

    Raises ``ConfigError`` for an unfinished task: it continues from its newest version. Raises ``AdapterError`` for an
    unknown version, or an undeletable file.
    """
    state = store.tasks.state(task)
    if state not in FINISHED:
        raise ConfigError(
            f"Task {task} is {state}; it goes on from its adapters, so they cannot be deleted.",
            f"Wait for its end, or `marlaas cancel {task}` first.",
        )
    versions = [v for v in store.versions.on_disk(task, policy) if number is None or v.number == number]
    if not versions:
        which = "adapter" if number is None else f"version {number}"
        raise AdapterError(f"Task {task} has no {which} on disk.", "`marlaas adapters list` shows what there is.")
    for version in versions:
        if waiting := store.versions.wanted(version.policy).get(version.number):
            raise ConfigError(
                f"Task {waiting} is to begin from version {version.number} of task {task}, or plays with it.",
                f"Wait until it is done, or `marlaas cancel {waiting}` first.",
            )
        if name := store.served.numbers(version.policy).get(version.number):
            raise ConfigError(
                f"Version {version.number} of task {task} is served to clients under the name {name!r}.",
                f"`marlaas adapters name {name} --remove` takes the name away.",
            )
    files = [Path(version.path) for version in versions]
    await asyncio.to_thread(_check_folders, {file.parent for file in files})
    store.versions.prune(*(version.id for version in versions))
    store.telemetry.event("adapter", f"Deleted: {', '.join(version.name for version in versions)}.", task)
    if number is None and policy is None:
        own = {file.parent for file in files if file.parent.name == f"task-{task}"}
        files += [file for folder in own for file in (*folder.glob("*.safetensors"), folder / MARK)]
    await asyncio.to_thread(_remove, store, files)


def _check_folders(folders: Set[Path]) -> None:
    for folder in folders:
        if not folder.is_dir():
            raise AdapterUnreachable(
                "the folder is not there, so nothing can be deleted in it.",
                "Bring it back, or mount its disk; where it is gone for good, make an empty one.",
                where=str(folder),
            )


def _remove(store: Store, files: Sequence[Path]) -> None:
    store.barrier()  # else a power cut could bring back rows without files
    for file in files:
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            cause = f"cannot be removed: {error.strerror}."
            raise AdapterError(cause, "Remove it by hand.", where=str(file)) from error
    for folder in {file.parent for file in files}:
        with contextlib.suppress(OSError):
            folder.rmdir()


# *extend* must give the same run made longer.


async def extend(store: Store, task: int, steps: object, end_run: Callable[[int], Awaitable[None]]) -> None:
    """Set the total ``steps``; idempotent.

    ``end_run`` stops a running task at its last commit. Raises ``ConfigError`` or ``AdapterError`` if refused, and then
    changes nothing.
    """
    before = store.tasks.spec(task)
    if before.kind == "eval":
        raise ConfigError("It is an evaluation, which makes no steps.", "`marlaas eval` measures further versions.")
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < before.steps:
        raise ConfigError(f"It has {before.steps} steps and can only be given more.")
    if steps == before.steps:
        return
    _check_extension(store, task, before, steps)
    await end_run(task)
    state = _check_extension(store, task, before, steps)
    store.tasks.extend(task, steps, state)
    more = steps - before.steps
    store.telemetry.event("task", f"The task has {more:,} more steps, {steps:,} all told; it is {state}.", task)


def _check_extension(store: Store, task: int, before: TaskSpec, steps: int) -> str:
    state = store.tasks.state(task)
    after = next_state("extend", state)
    parse(replace(before, steps=steps).to_json(), f"task {task}")
    if store.tasks.base(task) not in ("", store.fingerprint):
        raise ConfigError("It belongs to another base than the one that this home has.")
    made = store.tasks.steps_made(task)
    if made and before.train.schedule != "constant":
        raise ConfigError(
            f"Its learning rate falls ({before.train.schedule}) towards 0 at step {before.steps}; with more steps it"
            " would rise again.",
            'Only tasks with `schedule = "constant"` under [train] can be extended once they have begun.',
        )
    if state != "done":
        return after
    if made < before.steps:
        raise ConfigError(
            f"It was done at step {made} of {before.steps}, before its last: more steps would change nothing.",
            store.tasks.reason(task),
        )
    newest = {version.policy: version.number for version in store.versions.on_disk(task)}
    standing = store.versions.standing(task)
    if any(newest.get(policy, -1) < step for policy, (_, step) in standing.items()):
        raise AdapterError("Its adapter is not on the disk any more: there is nothing to go on from.")
    ended = [store.evaluations.of(deciding(before)).scores(policy) for policy in standing]
    if all(reached(scores, before.eval) or stalled(scores, before.eval) for scores in ended):
        why = "has reached its target" if reached(ended[0], before.eval) else "has not risen for as long as it may"
        raise ConfigError(f"Its held-out score {why}: it would end at once.")
    return after


def _version(store: Store, task: int, number: object, policy: str | None, hint: str, which: str) -> Version:
    versions = [version for version in store.versions.on_disk(task, policy) if version.number == number]
    if not versions:
        raise AdapterError(f"Task {task} has no version {number} on disk.", hint)
    if len(versions) > 1:
        raise ConfigError(f"Several policies of task {task} have a version {number}.", f"Say which policy {which}.")
    return versions[0]


def name_version(store: Store, task: int, name: object, number: int | None, policy: str | None = None) -> None:
    """Name a version, for clients of the task's tenant.

    Raises ``ConfigError`` for an invalid name, ``AdapterError`` without the version's file.
    """
    name = served_name(name)
    version = _version(store, task, number, policy, "`marlaas adapters list` shows what there is.", "is meant")
    tenant = store.tasks.spec(task).tenant
    store.served.give(tenant, name, version.id)
    store.telemetry.event("adapter", f"Clients of {tenant} find {version.name} as {name}.", task)


def unname(store: Store, tenant: object, name: object) -> None:
    """Raises ``ConfigError`` for an unknown name."""
    if not isinstance(tenant, str) or not isinstance(name, str) or not store.served.take(tenant, name):
        raise ConfigError(f"Tenant {tenant!r} has given no version the name {name!r}.")
    store.telemetry.event("adapter", f"The name {name} of tenant {tenant} means no version any more.")


# *rollback* copies nothing: the version becomes the newest, with a new optimizer if only the adapter was kept.


async def roll_back(store: Store, task: int, number: object, policy: str | None = None) -> None:
    """Requeue a task that does not run, from an earlier version.

    Groups consumed by voided steps wait again if a version up to this one sampled them. Raises ``ConfigError`` for a
    wrong state, another base or nothing left to train; ``AdapterError`` if the version is gone, damaged, or older than
    one that another task needs.
    """
    state = next_state("rollback", store.tasks.state(task))
    if store.tasks.base(task) not in ("", store.fingerprint):
        raise ConfigError(f"Task {task} belongs to another base than the one that this home has.")
    spec = store.tasks.spec(task)
    if spec.kind == "eval":
        raise ConfigError("It is an evaluation, which makes no versions.")
    on_disk = ", ".join(str(version.number) for version in store.versions.on_disk(task, policy))
    version = _version(store, task, number, policy, f"On disk: {on_disk}." if on_disk else "", "goes back")
    if version.number >= spec.steps:
        raise ConfigError(f"Version {number} of task {task} is its last: no step would be left to make.")
    for wanted, waiting in store.versions.wanted(version.policy).items():
        if wanted > version.number:
            raise AdapterError(
                f"Task {waiting} is to begin from version {wanted}, or plays with it, and it would be void.",
                f"Wait until it is done, or `marlaas cancel {waiting}` first.",
            )
    for served, name in store.served.numbers(version.policy).items():
        if served > version.number:
            raise AdapterError(
                f"Version {served} is served to clients under the name {name!r}, and it would be void.",
                f"`marlaas adapters name {name} --remove` takes the name away.",
            )
    await asyncio.to_thread(read_expected, Path(version.path), version.checksum, moments=True)
    store.versions.void_after(version.policy, version.number)
    store.experience.drop_unusable(version.policy, version.number)
    Retention(store, task, version.policy, suite=deciding(spec)).label()
    how = "" if version.resumable else ", with a new optimizer: its moments had been given up for room"
    store.telemetry.event("task", f"The task is {state} again: it goes on from {version.name}{how}.", task)
    store.tasks.set_state(task, state, fresh=True)  # last: if the engine dies before, all is done again
    await asyncio.to_thread(store.barrier)  # else a power cut could bring back rows without files


PAUSED = Reason(ReasonCode.PERSON, "paused by you")


class Commands:
    """Carries out one engine's commands."""

    def __init__(
        self,
        store: Store,
        end_run: Callable[[int], Awaitable[None]],
        stop: Callable[[], None],
        drain: Callable[[], None],
        reload: Callable[[str], Awaitable[None]],
    ) -> None:
        """``end_run`` stops a running task at its last commit, or records its end.

        ``reload`` raises ``MarlaasError``.
        """
        self._store = store
        self._end_run = end_run
        self._stop = stop
        self._drain = drain
        self._reload = reload
        self._reloads: dict[int, asyncio.Task[None]] = {}

    async def carry_out(self, command: Command) -> None:
        if command.kind in (*YIELDS, *API_SWITCHES, *NODE_COMMANDS):
            return
        if command.kind == "reload":
            if command.id not in self._reloads:
                self._reloads[command.id] = asyncio.ensure_future(self._reloaded(command))
            return
        outcome, asked = "", command.arguments
        version = asked.get("version"), asked.get("policy")
        try:
            match command.kind, command.task:
                case "stop", _:
                    self._stop()
                case "drain", _:
                    self._drain()
                case "tenant", _:
                    self._set_tenant(asked)
                case "unname", _:
                    unname(self._store, asked.get("tenant"), asked.get("name"))
                case "delete", int(task):
                    await delete_versions(self._store, task, *version)
                case "name", int(task):
                    name_version(self._store, task, asked.get("name"), *version)
                case "extend", int(task):
                    await extend(self._store, task, asked.get("steps"), self._end_run)
                case "priority", int(task):
                    await self._prioritise(task, asked.get("priority"))
                case "rollback", int(task):
                    await roll_back(self._store, task, *version)
                case kind, int(task):
                    await self._steer(kind, task)
        except DatabaseLocked:
            raise
        except MarlaasError as error:
            outcome = str(error)
        self._store.tasks.finish_command(command.id, outcome)

    async def _reloaded(self, command: Command) -> None:
        outcome = ""
        try:
            await self._reload(str(command.arguments.get("plugin")))
        except MarlaasError as error:
            outcome = str(error)
        finally:
            del self._reloads[command.id]
        with contextlib.suppress(StoreError):
            self._store.tasks.finish_command(command.id, outcome)

    async def _steer(self, kind: str, task: int) -> None:
        tasks = self._store.tasks
        next_state(kind, tasks.state(task))
        if kind == "retry" and tasks.base(task) not in ("", self._store.fingerprint):
            raise ConfigError(f"Task {task} belongs to another base than the one that this home has.")
        await self._end_run(task)
        state = next_state(kind, tasks.state(task))
        tasks.set_state(task, state, PAUSED if kind == "pause" else Reason(), fresh=True)
        self._store.telemetry.event("task", f"The task is {state} ({kind}).", task)

    async def _prioritise(self, task: int, priority: Any) -> None:
        tasks = self._store.tasks
        spec, before = tasks.spec(task), tasks.state(task)
        next_state("priority", before)
        parse(replace(spec, queue=replace(spec.queue, priority=priority)).to_json(), f"task {task}")
        if priority == spec.queue.priority:
            return
        await self._end_run(task)
        state = next_state("priority", tasks.state(task))
        tasks.set_priority(task, priority)
        if state != before:
            tasks.set_state(task, state)
        self._store.telemetry.event("task", f"The task has priority {priority}; it is {state}.", task)

    def _set_tenant(self, asked: Mapping[str, Any]) -> None:
        name, changes = tenant_change(asked)
        self._store.tenants.set(name, **changes)
        shown = ", ".join(f"{key} {value:,}" for key, value in changes.items())
        self._store.telemetry.event("tenant", f"Tenant {name}: {shown}.")
