"""Makes the supervisor leave the machine and return (``yield_at``).

Starts and long calls end within seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from time import monotonic

from ...devices.usable import ResourceSettings
from ...errors import StoreError
from ...home.settings import ActiveHours
from ...store.rows import HOURS, YIELDED, Yielding, YieldRequest
from ...store.store import Store
from ...store.submissions import YIELDS
from ...store.tasks import Command
from ..supervisor import WorkerSupervisor
from .decision import TAKEN_BACK, clock, state, yield_at

POLL = 0.2


class YieldLoop:
    """Decides when one engine has workers."""

    def __init__(
        self,
        store: Store,
        supervisor: WorkerSupervisor,
        settings: ResourceSettings,
        log: Callable[[str, str, str], None],
        busy: Callable[[], bool] = lambda: False,
        changed: Callable[[], None] = lambda: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """``busy``: a task runs or is about to; ``changed``: runnable tasks changed. ``now``: seconds since 1970."""
        self._store = store
        self._supervisor = supervisor
        self._hours = ActiveHours.parse(settings.active_hours)
        self._patience = 60 * settings.idle_minutes
        self._log = log
        self._busy = busy
        self._changed = changed
        self._now = now
        self._yielded = store.telemetry.yield_request()
        self._told: Yielding | None = None
        self._quiet = monotonic()
        self._seen = -1

    async def run(self) -> None:
        while True:
            with contextlib.suppress(StoreError):
                await self.look()
            await asyncio.sleep(POLL)

    async def look(self) -> None:
        """Carry out commands; end workers for these, active hours or idleness."""
        outcomes = {command.id: self._hear(command) for command in self._commands()}
        now = self._now()
        if self._yielded is not None and self._yielded.until is not None and self._yielded.until <= now:
            self._yielded = None
        yielding = yield_at(now, self._yielded, self._hours, self._idle())
        if yielding is not None and yielding != self._supervisor.yielding:
            begun = self._supervisor.yield_machine(yielding)
            self._changed()
            await begun
        if yielding != self._told:
            self._tell(yielding, now)
        for command, outcome in outcomes.items():
            self._store.tasks.finish_command(command, outcome)

    def _commands(self) -> list[Command]:
        seen = self._store.changed()
        if seen == self._seen:
            return []
        found = [command for command in self._store.tasks.new_commands() if command.kind in YIELDS]
        self._seen = -1 if found else seen
        return found

    def _hear(self, command: Command) -> str:
        if command.kind == "yield":
            until = command.arguments.get("until")
            self._yielded = YieldRequest(None if until is None else float(until))
            return ""
        now, had, self._yielded = self._now(), self._yielded, None
        if had or self._hours.active(now):
            return ""
        changes = self._hours.changes(now)
        goes_on = f" and goes on at {clock(changes, now)}" if changes is not None else ""
        hint = "`active_hours` under [resources] in marlaas.toml says when it may work, from its next start on."
        return f"The engine has not yielded the machine: it is outside of its active hours{goes_on}. {hint}"

    def _idle(self) -> bool:
        """True after a long idle time, until a task wants workers."""
        if self._supervisor.yielding is not None:
            return True
        if self._busy() or not self._supervisor.ready:
            self._quiet = monotonic()
            return False
        return 0 < self._patience <= monotonic() - self._quiet

    def _tell(self, yielding: Yielding | None, now: float) -> None:
        if self._yielded is None:
            self._store.telemetry.end_yield()
        else:
            self._store.telemetry.begin_yield(self._yielded.until)
        self._store.telemetry.yielding(self._store.incarnation, yielding)
        before, self._told = self._told, yielding
        if yielding is not None:
            self._log("engine", self._sentence(yielding, before, now), "info")
        self._changed()

    def _sentence(self, yielding: Yielding, before: Yielding | None, now: float) -> str:
        if yielding.kind == YIELDED:
            yields = f"The engine has {state(yielding, now).replace('yielded', 'yielded the machine')}"
            return f"{yields}: it has no workers, and tasks stand at their last commit; {TAKEN_BACK}."
        if yielding.kind == HOURS:
            return f"The engine is {state(yielding, now)} and has no workers."
        if before is not None:
            why = "The engine has the machine again" if before.kind == YIELDED else "The active hours have begun"
            return f"{why}: the next task starts the workers."
        given = "the workers have ended and given back cards and memory; the next task starts them again"
        return f"Nothing has run for {self._patience / 60:g} minutes: {given}."
