"""Carries out the app's commands: a task's next state, a tenant's share, deletion, rollback, a reload, the end.

A command's outcome is empty where it was done, else the one sentence that says why not.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from ..errors import ConfigError, DatabaseLocked, MarlaasError, StoreError
from ..spec import parse, tenant_change
from ..store import API_SWITCHES, NODE_COMMANDS, YIELDS, Command, Reason, ReasonCode, Store
from ..submission import next_state
from .deletion import delete_versions
from .extension import extend
from .naming import name_version, unname
from .rollback import roll_back

PAUSED = Reason(ReasonCode.PERSON, "paused by you")


class Commands:
    """Carries out the commands of one engine."""

    def __init__(
        self,
        store: Store,
        end_run: Callable[[int], Awaitable[None]],
        stop: Callable[[], None],
        drain: Callable[[], None],
        reload: Callable[[str], Awaitable[None]],
    ) -> None:
        """``end_run`` stops a task at its last commit, if it runs, and records how it ended if it did by itself.
        ``reload`` reads an environment plugin anew; raises ``MarlaasError``."""
        self._store = store
        self._end_run = end_run
        self._stop = stop
        self._drain = drain
        self._reload = reload
        self._reloads: dict[int, asyncio.Task[None]] = {}
        """Reloads under way, by the command's number."""

    async def carry_out(self, command: Command) -> None:
        """Do it and record the outcome; a reload, which may take long, goes on in the background."""
        if command.kind in (*YIELDS, *API_SWITCHES, *NODE_COMMANDS):
            return  # ``fleet.yielding``, ``api`` and ``daemon.nodes`` hear them, which no call of a stage holds up
        if command.kind == "reload":
            if command.id not in self._reloads:
                self._reloads[command.id] = asyncio.ensure_future(self._reloaded(command))
            return
        outcome = ""
        try:
            if command.kind == "stop":
                self._stop()
            elif command.kind == "drain":
                self._drain()
            elif command.kind == "tenant":
                self._set_tenant(command)
            elif command.kind == "delete" and command.task is not None:
                await delete_versions(self._store, command.task, *_version(command))
            elif command.kind == "name" and command.task is not None:
                name_version(self._store, command.task, command.arguments.get("name"), *_version(command))
            elif command.kind == "unname":
                unname(self._store, command.arguments.get("tenant"), command.arguments.get("name"))
            elif command.kind == "extend" and command.task is not None:
                await extend(self._store, command.task, command.arguments.get("steps"), self._end_run)
            elif command.kind == "priority" and command.task is not None:
                await self._prioritise(command.task, command.arguments.get("priority"))
            elif command.kind == "rollback" and command.task is not None:
                await roll_back(self._store, command.task, *_version(command))
            elif command.task is not None:
                await self._steer(command.kind, command.task)
        except DatabaseLocked:
            raise  # it is carried out in a later turn
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
        with contextlib.suppress(StoreError):  # on a full disk the command is carried out again
            self._store.tasks.finish_command(command.id, outcome)

    async def _steer(self, kind: str, task: int) -> None:
        """Move a task to the state that a command leads to. Raises ``ConfigError`` where it leads nowhere."""
        tasks = self._store.tasks
        next_state(kind, tasks.state(task))
        if kind == "retry" and tasks.base(task) not in ("", self._store.fingerprint):
            raise ConfigError(f"Task {task} belongs to another base than the one that this home has.")
        await self._end_run(task)
        state = next_state(kind, tasks.state(task))
        tasks.set_state(task, state, PAUSED if kind == "pause" else Reason(), fresh=True)
        self._store.telemetry.event("task", f"The task is {state} ({kind}).", task)

    async def _prioritise(self, task: int, priority: Any) -> None:
        """Give a task another priority; one that runs goes on from its last commit. Raises ``ConfigError``."""
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

    def _set_tenant(self, command: Command) -> None:
        name, changes = tenant_change(command.arguments)
        self._store.tenants.set(name, **changes)
        shown = ", ".join(f"{key} {value:,}" for key, value in changes.items())
        self._store.telemetry.event("tenant", f"Tenant {name}: {shown}.")


def _version(command: Command) -> tuple[int | None, str | None]:
    """The number of the version that a command means, and the name of its policy."""
    return command.arguments.get("version"), command.arguments.get("policy")
