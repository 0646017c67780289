"""The engine's centre: commands in, tasks started and stopped, states out. One event loop, no tensor work.

Thin on purpose: what may run is decided in ``schedule``, how a task runs in ``task_run``, what lives in ``crew``.
"""

from __future__ import annotations

import asyncio
import contextlib
from time import monotonic

from ..errors import MarlaasError, StoreError
from ..queue import next_state
from ..store.rows import PAUSED_BY_A_PERSON
from ..store.store import Store
from ..store.tasks import Command, QueuedTask
from .crew import Crew
from .deletion import delete_versions
from .schedule import decide
from .task_run import Ending, run_task

POLL = 0.2
"""Seconds between looks at the database for new commands."""
BLOCKED_RETRY = 1.0
"""Seconds after which a blocked task is tried again."""


class Orchestrator:
    """Runs the queue of one home until a *stop* command arrives or it is cancelled."""

    def __init__(self, store: Store, crew: Crew, slots: int) -> None:
        self._store = store
        self._crew = crew
        self._slots = slots
        self._runs: dict[int, asyncio.Task[Ending]] = {}
        self._unwritten: dict[int, Ending] = {}
        self._since: dict[int, float] = {}
        self._blocked: dict[int, float] = {}
        self._wake = asyncio.Event()
        self._seen = -1
        self._stopping = False

    async def run(self) -> None:
        """Serve until told to stop; running tasks then stand at their last commit, in state *running*."""
        try:
            while not self._stopping:
                try:
                    await self._turn()
                except StoreError:  # a full disk: the whole turn is tried again
                    self._seen = -1
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), POLL)
                self._wake.clear()
        finally:
            await self._end_runs(list(self._runs))

    def account(self) -> None:
        """Add to every running task the seconds that have passed since it started or was last accounted for."""
        now = monotonic()
        for task, since in self._since.items():
            self._store.tasks.add_seconds(task, now - since)
        self._since = dict.fromkeys(self._runs, now)

    @property
    def stopping(self) -> bool:
        """Whether ``run`` ends soon, or at once if it has not begun."""
        return self._stopping

    def stop(self) -> None:
        """End ``run`` soon."""
        self._stopping = True
        self._wake.set()

    def wake(self) -> None:
        """Something changed outside the database: an environment, for example."""
        self._blocked.clear()
        self._seen = -1
        self._wake.set()

    async def _turn(self) -> None:
        self._collect()
        seen = self._store.changed()
        due = any(monotonic() >= when for when in self._blocked.values())
        if seen == self._seen and not due and not self._unwritten:
            return
        self._seen = seen
        for command in self._store.tasks.new_commands():
            await self._carry_out(command)
        self._start_what_may_run()

    def _collect(self) -> None:
        """Record how finished runs ended; what the disk refuses now is recorded later."""
        if any(run.done() for run in self._runs.values()):
            self.account()
        for task, run in list(self._runs.items()):
            if run.done():
                del self._runs[task]
                self._unwritten[task] = Ending("queued") if run.cancelled() else run.result()
                self._seen = -1
        for task, ending in list(self._unwritten.items()):
            self._store.tasks.set_state(task, ending.state, ending.reason)
            level = {"done": "info", "queued": "warning"}.get(ending.state, "error")
            if ending.state == "queued":
                self._blocked[task] = monotonic() + BLOCKED_RETRY
            else:
                text = f"The task is {ending.state}. {ending.reason}".strip()
                self._store.telemetry.event("task", text, task, level)
            del self._unwritten[task]

    async def _carry_out(self, command: Command) -> None:
        """Do what the app asked for, or record the sentence that says why not."""
        outcome = ""
        try:
            if command.kind == "stop":
                self._stopping = True
            elif command.kind == "delete" and command.task is not None:
                await delete_versions(self._store, command.task, command.arguments.get("version"))
            elif command.task is not None:
                next_state(command.kind, self._store.tasks.state(command.task))
                await self._end_runs([command.task])
                self._collect()  # it may have ended by itself in the same moment
                state = next_state(command.kind, self._store.tasks.state(command.task))
                reason = PAUSED_BY_A_PERSON if command.kind == "pause" else ""
                self._store.tasks.set_state(command.task, state, reason)
                self._store.telemetry.event("task", f"The task is {state} ({command.kind}).", command.task)
        except MarlaasError as error:
            outcome = str(error)
        self._store.tasks.finish_command(command.id, outcome)

    def _start_what_may_run(self) -> None:
        now, tasks = monotonic(), self._store.tasks.unfinished()
        ready = [task for task in tasks if now >= self._blocked.get(task.id, 0.0)]  # a blocked task takes no slot
        depended = tuple({other for task in tasks for other in task.spec.queue.depends_on})
        verdicts = decide(ready, set(self._runs), self._slots, self._store.tasks.states(depended))
        self._blocked = {task: when for task, when in self._blocked.items() if when > now}
        for task in ready:
            verdict = verdicts.get(task.id)
            if verdict is None:
                continue
            if verdict.start:
                self._start(task)
            else:
                self._store.tasks.set_state(task.id, "failed" if verdict.failed else "queued", verdict.reason)

    def _start(self, task: QueuedTask) -> None:
        def started() -> None:
            self._store.tasks.set_state(task.id, "running")

        run = asyncio.ensure_future(run_task(task, self._crew, started))
        run.add_done_callback(lambda _: self._wake.set())
        self._runs[task.id] = run
        self._since[task.id] = monotonic()

    async def _end_runs(self, tasks: list[int]) -> None:
        with contextlib.suppress(StoreError):
            self.account()
        for task in tasks:
            self._since.pop(task, None)
        runs = {task: run for task in tasks if (run := self._runs.pop(task, None))}
        for run in runs.values():
            run.cancel()
        endings = await asyncio.gather(*runs.values(), return_exceptions=True)
        for task, ending in zip(runs, endings, strict=True):
            if isinstance(ending, Ending) and ending.state in ("done", "failed"):
                self._unwritten[task] = ending
