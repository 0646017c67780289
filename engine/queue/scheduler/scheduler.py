"""Runs the queue by ``decision``; ``machine.supervisor`` keeps the workers alive."""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace

from ...clock import monotonic, wall_time
from ...errors import (
    AdapterError,
    AdapterUnreachable,
    Blocked,
    ConfigError,
    DatabaseLocked,
    DatabaseUnwritable,
    Fruitless,
    MarlaasError,
    Paused,
    StateLost,
    StoreError,
    WorkerDied,
)
from ...fairness.line import Payer
from ...home.paths import Home
from ...machine.supervisor import WorkerSupervisor
from ...machine.yielding.decision import reason as reason_to_yield
from ...racing import until_first
from ...spec.task import TaskSpec, start_folder
from ...store.queries.reader import Reader
from ...store.rows import NO_REASON, Reason, ReasonCode
from ...store.store import Store
from ...store.tasks import QueuedTask
from ...train.evaluation import EvalRun
from ...train.loop import TrainRun
from ...train.opening import check_ready
from ..rollout_rows import with_rollouts
from ..submission.references import TEACHER, choose_at, references
from .commands import Commands
from .decision import PAUSES, Act, Situation, decide, in_words

MAX_DEATHS = 5
"""Worker deaths without a step between; then the task pauses, for it may kill them."""

Runner = TrainRun | EvalRun


CODES = {
    "done": ReasonCode.ENDED,
    "queued": ReasonCode.BLOCKED,
    "paused": ReasonCode.ITSELF,
    "failed": ReasonCode.FAILED,
}


@dataclass(frozen=True)
class Ending:
    """How a task's run ends. *queued*: it continues once its needs are there; *running*: the engine stops."""

    state: str
    why: str = ""
    again: bool = False
    """It may be tried again by itself."""

    @property
    def reason(self) -> Reason:
        return Reason(CODES[self.state], self.why) if self.why else NO_REASON


def bind_starts(home: Home, store: Store, task: int, spec: TaskSpec) -> None:
    """Bind what training begins from, and its teacher, once its dependencies are done.

    Raises ``AdapterError`` or ``ConfigError`` if there is no such version.
    """
    awaited = [(words, key) for words, key, policy in references(spec) if policy or key == TEACHER]
    for words, key in awaited:
        if start_folder(words) is not None:
            continue
        if store.versions.start(task, words) is None:
            with Reader(home.database) as reader:
                needed = {row.id for row in reader.needs(task)}
                version = choose_at([version for version in reader.versions() if version.task in needed], words)
            store.versions.borrow(task, words, version.id, plays=key == TEACHER)


async def run_task(
    task: int,
    spec: TaskSpec,
    supervisor: WorkerSupervisor,
    started: Callable[[Runner], None],
    tell: Callable[[str, int], None] = lambda event, task: None,
) -> Ending:
    """Until its end, or something stops it. Cancelling leaves the task at its last commit.

    ``started`` gets the runner once nothing blocks the task.
    """
    in_a_row, last = 0, -1
    while True:
        payer = Payer(spec.tenant, task, spec.queue.priority)
        runner, lost, deaths = None, supervisor.lost, supervisor.deaths
        try:
            if supervisor.yielding is not None:
                await check_ready(task, spec, supervisor.store, supervisor.environments, supervisor.shortage)
                supervisor.wake()
            services = replace((await supervisor.services()).of(payer, spec.train.deterministic), tell=tell)
            lost, deaths = supervisor.lost, supervisor.deaths
            bind_starts(services.home, services.store, task, spec)
            spec = await asyncio.to_thread(with_rollouts, services.home, task, spec)
            runner = (EvalRun if spec.kind == "eval" else TrainRun)(services, task, spec, started)
            if 0 not in await until_first(runner.run(), lost.wait()):
                raise WorkerDied("A worker died.")
            return Ending("running") if runner.drained else Ending("done", runner.remark)
        except WorkerDied as error:
            step = runner.progress if runner else last
            yielding = supervisor.yielding is not None
            if not isinstance(error, StateLost):
                await until_first(lost.wait(), supervisor.noticed(deaths))
            if not (yielding or supervisor.mended):
                in_a_row, last = (in_a_row + 1 if step <= last else 1), max(step, last)
            if in_a_row >= MAX_DEATHS:
                made = "measured versions" if spec.kind == "eval" else "steps"
                reason = f"Workers died {in_a_row} times after {max(last, 0)} {made} of this task: {error}"
                return Ending("paused", reason, again=True)
        except (Blocked, DatabaseUnwritable) as error:
            return Ending("queued", str(error))
        except DatabaseLocked:  # in a write without retries: continue from the last commit once it is free
            await supervisor.store.unlocked()
        except AdapterUnreachable as error:
            return Ending("queued", f"waiting for its adapters: {error}")
        except (Paused, StoreError, AdapterError) as error:
            return Ending("paused", str(error), again=not isinstance(error, Fruitless))
        except (ConfigError, ValueError) as error:
            return Ending("failed", str(error))
        except MarlaasError as error:
            return Ending("failed", str(error), again=True)
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{place.filename.rsplit('/', 1)[-1]}, line {place.lineno}"
            with contextlib.suppress(StoreError):
                supervisor.store.telemetry.event("bug", traceback.format_exc(), task, "error")
            reason = f"An error in marlaas itself ({where}): {type(error).__name__}: {error}"
            return Ending("failed", reason, again=True)


POLL = 0.2
REVIEW = 1.0
"""Seconds between reviews: a pause may be over, a blocked task may be tried."""
TRIES = 20.0
"""Blocked tasks tried each second: a thousand of one broken environment must not keep the engine busy. After its
repair, all are tried at once."""
LONG = 1000
"""Above this number of unfinished tasks, changes cause no review: time would be quadratic."""
LOOKED_AT = 10_000.0
"""Tasks of such a queue reviewed each second."""
STARTING = Reason(ReasonCode.STARTING, "is starting")
INTERRUPTED = Reason(ReasonCode.INTERRUPTED, "was interrupted")


@dataclass
class Run:
    """A task that runs, or begins."""

    work: asyncio.Task[Ending]
    since: float
    """Monotonic time, accounted for so far."""
    runner: Runner | None = None


@dataclass
class Wait:
    """A task that could not run."""

    reason: Reason
    until: float | None
    """Monotonic; None: at once."""
    since: float
    """First vain try, in seconds since 1970."""
    notified: bool = False


class Scheduler:
    """Runs a home's queue until *stop* or cancellation."""

    def __init__(
        self,
        store: Store,
        supervisor: WorkerSupervisor,
        slots: int,
        clock: Callable[[], float] = wall_time,
        tell: Callable[[str, int], None] = lambda event, task: None,
        patience: float = 600.0,
    ) -> None:
        """``clock``: seconds since 1970. ``tell`` gets *done*, *failed* and *stalled* tasks (paused themselves, or
        blocked for ``patience`` seconds), and a *finding*."""
        self._store = store
        self._supervisor = supervisor
        self._slots = slots
        self._clock = clock
        self._commands = Commands(store, self._end_run, self.stop, self.drain, supervisor.reload)
        self._runs: dict[int, Run] = {}
        self._waits: dict[int, Wait] = {}
        self._unwritten: dict[int, Ending] = {}
        self._tell = tell
        self._patience = patience
        self._wake = asyncio.Event()
        self._seen = -1
        self._review = 0.0
        self._rested = 0.0
        self.stopping = False
        self._settled: Callable[[], None] | None = None

    async def run(self) -> None:
        """Until stopped; tasks then stop at their last commit, in state *running*."""
        try:
            while not self.stopping:
                try:
                    await self._turn()
                except StoreError:
                    self._seen = -1
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(POLL):
                        await self._wake.wait()
                self._wake.clear()
        finally:
            await self._end_runs(list(self._runs))

    def account(self) -> None:
        now = monotonic()
        self._store.tasks.add_seconds({task: now - run.since for task, run in self._runs.items()})
        for run in self._runs.values():
            run.since = now

    @property
    def busy(self) -> bool:
        return any(task not in self._waits or self._waits[task].until is None for task in self._runs)

    def stop(self) -> None:
        self.stopping = True
        self._wake.set()

    def drain(self) -> None:
        """Start nothing; end ``run`` once every task has committed its current step.

        Tasks stay *running* for the next engine.
        """
        self._drain(None)

    def settle(self, then: Callable[[], None]) -> None:
        """Call ``then`` when no task is within a step; start none before.

        A draining engine never calls it: the next one begins with the change.
        """
        if not self._supervisor.draining.is_set() or self._supervisor.settling:
            self._drain(then)

    def _drain(self, then: Callable[[], None] | None) -> None:
        self._settled = then
        self._supervisor.settling = then is not None
        self._supervisor.draining.set()
        self._wake.set()

    @property
    def note(self) -> str:
        if not self._supervisor.draining.is_set():
            return ""
        left = len(self._runs)
        then = "the workers move" if self._supervisor.settling else "the engine stops"
        return f"{left} {'task finishes' if left == 1 else 'tasks finish'} the step under way; then {then}."

    def wake(self, mended: Set[str] = frozenset()) -> None:
        """An environment changed, or yielding began or ended.

        Tasks of ``mended`` environments are tried at once.
        """
        with contextlib.suppress(StoreError):
            self._store.tasks.hurry(mended)
        for wait in self._waits.values():
            wait.until = None
        self._seen = -1
        self._wake.set()

    async def _turn(self) -> None:
        if self._store.locked:
            return
        self._collect()
        seen, now = self._store.changed(), monotonic()
        if seen == self._seen and now < self._review:
            return
        rests = now < self._rested
        self._seen, self._review = seen, self._rested if rests else now + REVIEW
        for command in self._store.tasks.new_commands():
            await self._commands.carry_out(command)
        if not self._supervisor.draining.is_set():
            if not rests:
                await self._go_through_the_queue()
            return
        if self._held():
            await self._end_runs(list(self._runs))
        if self._runs:
            return
        if (then := self._settled) is None:
            self.stop()
            return
        self._settled = None
        self._supervisor.settling = False
        self._supervisor.draining.clear()
        self._seen = -1
        self._wake.set()
        then()

    def _collect(self) -> None:
        ended = [task for task, run in self._runs.items() if run.work.done()]
        if ended:
            self.account()
        for task in ended:
            work = self._runs.pop(task).work
            self._unwritten[task] = Ending("queued") if work.cancelled() else work.result()
        for task, ending in list(self._unwritten.items()):
            self._review = 0.0
            self._record(task, ending)
            del self._unwritten[task]

    def _record(self, task: int, ending: Ending) -> None:
        store, reason = self._store, ending.reason
        if ending.state == "running":
            return
        if ending.state == "queued":
            self._wait(task, reason if reason.words else INTERRUPTED)
            return
        made, allowed = store.tasks.tries(task)
        if ending.again and made < allowed:
            pause = PAUSES[min(made, len(PAUSES) - 1)]
            cause = in_words(made + 1, allowed, reason.words)
            store.telemetry.event("task", f"Retrying in {pause:.0f} s, {cause}", task, "warning")
            store.tasks.try_again(task, self._clock() + pause, cause)
            return
        store.tasks.set_state(task, ending.state, reason)
        text = f"The task is {ending.state}. {reason.words}".strip()
        store.telemetry.event("task", text, task, "info" if ending.state == "done" else "error")
        self._tell("stalled" if ending.state == "paused" else ending.state, task)

    def _wait(self, task: int, reason: Reason) -> None:
        until, now = monotonic() + max(REVIEW, len(self._waits) / TRIES), self._clock()
        before = self._waits.get(task, Wait(NO_REASON, None, now))
        wait = self._waits[task] = replace(before, reason=reason, until=until)
        self._store.tasks.explain({task: reason})
        if reason.code == ReasonCode.INTERRUPTED:
            return
        if not wait.notified and now - wait.since >= self._patience:
            wait.notified = True
            self._tell("stalled", task)
        if reason.words != before.reason.words:
            self._store.telemetry.event("task", f"The task is blocked: {reason.words}", task, "warning")

    async def _go_through_the_queue(self) -> None:
        tasks = self._store.tasks.unfinished()
        self._rested = monotonic() + (len(tasks) / LOOKED_AT if len(tasks) > LONG else 0.0)
        waiting = {task.id for task in tasks if task.state == "queued"}
        self._waits = {task: wait for task, wait in self._waits.items() if task in waiting}
        situation = self._situation()
        for wait in self._waits.values() if situation.yielding else ():
            wait.since = situation.now
        verdicts = decide(tasks, situation)
        if stopped := {task: verdict.reason for task, verdict in verdicts.items() if verdict.act is Act.HOLD}:
            await self._hold(stopped)
            return
        reasons, notes = {}, {}
        for task in tasks:
            verdict, run = verdicts.get(task.id), self._runs.get(task.id)
            if verdict is None:
                if run and task.state != "running" and task.reason.code != ReasonCode.STARTING:
                    reasons[task.id] = STARTING
                elif run and run.runner and task.reason.words != (note := run.runner.waits_for):
                    notes[task.id] = note
            elif verdict.act is Act.START:
                self._start(task)
            elif verdict.act is Act.FAIL:
                self._record(task.id, Ending("failed", verdict.reason.words))
            elif task.state != "queued" or task.reason != verdict.reason:
                reasons[task.id] = verdict.reason
        if reasons:
            self._store.tasks.explain(reasons)
        if notes:
            self._store.tasks.note(notes)

    async def _hold(self, reasons: Mapping[int, Reason]) -> None:
        self._seen = -1
        await self._end_runs(list(reasons))
        self._collect()
        for task, reason in reasons.items():
            if self._store.tasks.state(task) == "running":
                self._store.tasks.explain({task: reason})
                self._store.telemetry.event("task", f"The task waits: {reason.words}.", task)

    def _held(self) -> str:
        yielding = self._supervisor.yielding
        return reason_to_yield(yielding, self._clock()) if yielding is not None and yielding.holds else ""

    def _situation(self) -> Situation:
        blocked = {task: wait for task, wait in self._waits.items() if wait.until is not None}
        return Situation(
            now=self._clock(),
            slots=self._slots,
            running=set(self._runs),
            blocked={task: wait.reason for task, wait in blocked.items()},
            tried={task for task, wait in blocked.items() if monotonic() < (wait.until or 0.0)},
            tenant=self._store.tenants.get,
            used=self._store.tenants.tokens_today(),
            yielding=self._held(),
        )

    def _start(self, task: QueuedTask) -> None:
        def started(runner: Runner) -> None:
            self._store.tasks.set_state(task.id, "running")
            self._runs[task.id].runner = runner
            wait = self._waits.pop(task.id, None)
            if wait and wait.reason != INTERRUPTED:
                self._store.telemetry.event("task", "The task goes on.", task.id)

        try:
            spec = self._store.tasks.spec(task.id)
        except ConfigError as error:
            self._record(task.id, Ending("failed", f"This marlaas cannot read the task: {error}"))
            return
        wait = self._waits.get(task.id)
        if task.state != "running" and (wait is None or wait.until is None):
            self._store.tasks.explain({task.id: STARTING})
        work = asyncio.ensure_future(run_task(task.id, spec, self._supervisor, started, self._tell))
        work.add_done_callback(lambda _: self._wake.set())
        self._runs[task.id] = Run(work, monotonic())

    async def _end_run(self, task: int) -> None:
        await self._end_runs([task])
        self._collect()

    async def _end_runs(self, tasks: list[int]) -> None:
        with contextlib.suppress(StoreError):
            self.account()
        runs = {task: run.work for task in tasks if (run := self._runs.pop(task, None))}
        for work in runs.values():
            work.cancel()
        for task, ending in zip(runs, await asyncio.gather(*runs.values(), return_exceptions=True), strict=True):
            if isinstance(ending, Ending) and ending.state in ("done", "failed"):
                self._unwritten[task] = ending
