"""An engine's parts, start and end, and its process.

Until *stop*, *drain*, Ctrl-C or SIGTERM. ``python -m marlaas.engine.daemon.main HOME``, or ``marlaas engine run``.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import math
import os
import shlex
import signal
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable, Coroutine, Sequence, Set
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import psutil

from ..devices.limits import available_memory, keep_within
from ..environments.conformance.check import BACKGROUND, Background
from ..environments.conformance.finding import Finding, count
from ..environments.dependencies import Interpreters
from ..environments.protocol import EnvironmentEvent, EnvironmentInfo
from ..environments.service import EnvironmentService
from ..errors import HomeLocked, MarlaasError, StoreError
from ..fairness.line import Ledger
from ..faults import switch_on
from ..gateway.api import open_api
from ..gateway.figures import FigureReader
from ..gateway.serving.clients import Serving
from ..home.disk import DiskGuard
from ..home.paths import BUNDLED_PLUGINS, Home
from ..home.settings import Settings, load_settings
from ..machine.plan import PlacementPlan, precision_words
from ..machine.reference import check_comparison, compare_base, compared_before, spoken_comparison
from ..machine.supervisor import WorkerSupervisor
from ..machine.yielding.loop import YieldLoop
from ..models.find import BaseModel, load_base
from ..models.reference import UNVERIFIED
from ..models.weights import check_base
from ..queue.scheduler.scheduler import Scheduler
from ..queue.submission.queue import HomeBase, check_use
from ..racing import until_first
from ..rollout.programs import canned
from ..store.queries.reader import Reader
from ..store.schema import is_current
from ..store.store import Store
from ..tracking.processes import Trackers
from ..wire import Endpoints
from .control import STALE, EngineLock, make_home, open_database
from .heartbeat import CardMonitor, Heartbeat
from .planning import Planner, cluster_of, plan, without_nodes

if TYPE_CHECKING:
    from .nodes import NodeMonitor


def say(text: str) -> None:
    """Print a line without terminal controls; full disks and closed terminals end nothing."""
    with contextlib.suppress(OSError):
        print("".join(c if c.isprintable() else " " for c in text), file=sys.stderr, flush=True)


def in_words(plan: PlacementPlan) -> str:
    """The largest memory plan in a sentence; depends on free memory."""
    conversations = " and ".join(f"{own.sequences} conversations of {own.context:,} tokens" for own in plan.memory)
    return f"Planned are up to {conversations} and {plan.main_memory / 1e9:.1f} GB of main memory."


def names_of(plugin: str, infos: Sequence[EnvironmentInfo]) -> frozenset[str]:
    """Names by which tasks call a plugin's environments."""
    whole = {info.name for info in infos if info.name.partition("/")[0] == plugin}
    return frozenset(whole | {name.rpartition("/")[2] for name in whole})


_SAID = {
    "rejected": "broken",
    "quarantined": "failing",
    "recovered": "ready again",
    "died": "its process died",
    "polled": "changes are looked for every few seconds",
}


def describe(event: EnvironmentEvent) -> str:
    """One sentence: environment, event, reason, place."""
    text = f"Environment {event.plugin}: {_SAID.get(event.kind, event.kind)}"
    if event.failure is not None:
        place = f"{event.failure.file}:{event.failure.line}" if event.failure.line else event.failure.file
        text += f", {event.failure.message}" + (f" ({place})" if place else "")
    return f"{text}, version {event.version}" if event.version else text


# Converting a large base takes minutes. Meanwhile heartbeats are written and *stop* is heard.

START_INTERVAL = 0.5
ENDS = ("stop", "drain")


async def start_up(
    work: Coroutine[Any, Any, Any], store: Store, stopping: Callable[[], bool], note: Callable[[], str] = str
) -> bool:
    """Run ``work``; False if stopped first. Raises the errors of ``work``.

    ``note``: what it waits for, for people.
    """
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait((task,), timeout=START_INTERVAL)
            with contextlib.suppress(StoreError):
                store.telemetry.heartbeat(store.incarnation, "starting", note())
                if stopping() or any(command.kind in ENDS for command in store.tasks.new_commands()):
                    return False
        task.result()
        return True
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


# Checks' findings go to the store, errors also to the log.

Log = Callable[[str, str, str], None]


def background(environments: EnvironmentService, store: Store, log: Log, endpoints: Endpoints) -> Background:
    """An engine's checks, without environments that ship with marlaas: tests check these."""

    def known(environment: str, version: str) -> bool:
        return store.environments.is_checked(environment, version, store.fingerprint)

    def found(environment: str, version: str, findings: list[Finding]) -> None:
        with contextlib.suppress(StoreError):
            store.environments.add_findings(environment, version, store.fingerprint, findings)
        if count(findings, "error"):
            log("environment", sentence(environment, version, findings), "warning")

    serve = partial(canned, endpoints)
    return Background(environments, BACKGROUND, known, found, spare=(BUNDLED_PLUGINS,), serve=serve)


def sentence(environment: str, version: str, findings: list[Finding]) -> str:
    """The first of the errors."""
    first = next(finding for finding in findings if finding.level == "error")
    more = count(findings, "error") - 1
    others = f" (and {more} more: `marlaas env list`)" if more else ""
    return f"The environment {environment} ({version}) has an error: {first.message}{others}"


# The command under ``[notify]`` gets a JSON line per event; own process group, no shell, limited time. Failures are
# logged once.

LIMIT = 30.0
FAREWELL = 5.0
MOST = 1000
EXCERPT = 2000


class Notifier:
    """Runs one home's command, if any."""

    def __init__(self, command: str, home: Home, log: Log, limit: float = LIMIT) -> None:
        self._words = shlex.split(command)
        self._home = home
        self._log = log
        self._limit = limit
        self._events: asyncio.Queue[tuple[str, int]] = asyncio.Queue(MOST)
        self._failing = False
        self._work: asyncio.Task[None] | None = None

    def tell(self, event: str, task: int) -> None:
        """Queue *done*, *failed*, *stalled* or *finding*; never waits."""
        if not self._words:
            return
        if self._work is None:
            self._work = asyncio.ensure_future(self._run())
        try:
            self._events.put_nowait((event, task))
        except asyncio.QueueFull:
            self._failed(f"more than {MOST} events wait for it")

    async def delivered(self) -> None:
        await self._events.join()

    async def stop(self) -> None:
        if self._work is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL):
                await self.delivered()
        self._work.cancel()
        await asyncio.gather(self._work, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            event, task = await self._events.get()
            try:
                problem = await self._deliver(await asyncio.to_thread(described, self._home, event, task))
            except (OSError, ValueError, RuntimeError, StoreError) as error:
                problem = str(error)
            finally:
                self._events.task_done()
            if problem:
                self._failed(problem)
            else:
                self._failing = False

    async def _deliver(self, line: bytes) -> str:
        """The error, or empty. Ends remaining processes. Standard error is a file: a pipe ends only with its last
        holder."""
        program = str(Path(self._words[0]).expanduser())
        with tempfile.TemporaryFile() as errors:
            process = await asyncio.create_subprocess_exec(
                program, *self._words[1:], stdin=PIPE, stdout=DEVNULL, stderr=errors, start_new_session=True
            )
            try:
                async with asyncio.timeout(self._limit):
                    await process.communicate(line)
            except TimeoutError:
                return f"it took longer than {self._limit:g} s and was ended"
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
            if not process.returncode:
                return ""
            words = _last_line(errors)
            return f"it ended with code {process.returncode}{f': {words}' if words else ''}"

    def _failed(self, problem: str) -> None:
        if not self._failing:
            text = f"The command under [notify] failed: {problem}. This is not said again until it works."
            self._log("notify", text, "warning")
        self._failing = True


def _last_line(errors: IO[bytes]) -> str:
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, size - EXCERPT))
    lines = errors.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1].strip() if lines else ""


def described(home: Home, event: str, task: int) -> bytes:
    """Kind, home, the task's row; non-finite numbers are null. Raises ``StoreError``."""
    with Reader(home.database) as reader:
        row = reader.task(task)
    fields = asdict(row) if row else {"id": task}
    finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in fields.items()}
    return json.dumps({"event": event, "home": str(home.root), **finite}).encode() + b"\n"


class Engine:
    """One home's engine; within an event loop."""

    def __init__(
        self,
        home: Home,
        settings: Settings,
        base: BaseModel,
        placement_plan: PlacementPlan,
        store: Store,
        keep: Callable[[], None],
    ) -> None:
        self._home, self._settings, self._base, self._store = home, settings, base, store
        self._serves = False
        self._compares = ""
        self._environments = EnvironmentService(
            [BUNDLED_PLUGINS, home.plugins],
            home.scratch,
            self._on_environment,
            needed=self._played,
            interpreters=Interpreters(home.venvs, settings.environments, settings.resources.nice),
            earlier=store.environments.failing(),
        )
        ledger, log = Ledger(), self._log
        self._disk = DiskGuard(home, settings.disk, log)
        self._api = open_api(store, settings.api, home, log)
        cluster = cluster_of(home, settings, base)
        planner = Planner(home, base, settings, cluster, log)
        self._supervisor = supervisor = WorkerSupervisor(
            home,
            settings,
            base,
            placement_plan,
            store,
            self._environments,
            ledger,
            self._disk.shortage,
            log,
            planner.plan,
            self._api.endpoints,
            cluster,
            measure=planner.measure,
        )
        self._notifier = Notifier(settings.notify.command, home, log)
        patience = 60 * settings.notify.blocked_minutes
        self._scheduler = scheduler = Scheduler(
            store, supervisor, settings.engine.tasks, tell=self._notifier.tell, patience=patience
        )
        self._heartbeat = Heartbeat(
            store, ledger, self._environments.outcomes, scheduler.account, lambda: scheduler.note, keep=keep
        )
        serving = Serving(store, supervisor, settings.base, settings.api.requests_per_minute)
        self._yielding = YieldLoop(
            store, supervisor, settings.resources, log, lambda: scheduler.busy or serving.busy, scheduler.wake
        )
        self._conformance = background(self._environments, store, log, self._api.endpoints)
        self._cluster = cluster
        self._nodes: NodeMonitor | None = None
        if cluster is not None:
            from .nodes import NodeMonitor  # loads nothing of a cluster without one

            self._nodes = NodeMonitor(store, lambda: cluster.nodes(supervisor.ours), supervisor, scheduler.settle, log)
        self._trackers = Trackers(home, settings.track, log)
        self._cards = CardMonitor(store, settings.resources, supervisor, log)
        self._api.serve(serving.answerer, FigureReader(home.database, ledger).rows)

    async def serve(self) -> None:
        store, supervisor = self._store, self._supervisor
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._scheduler.stop)
        store.serve()
        try:
            parts = asyncio.gather(self._environments.start(), self._start_workers())
            start = until_first(self._yielding.run(), parts)
            if await start_up(
                start, store, lambda: self._scheduler.stopping, lambda: self._compares or supervisor.waits
            ):
                await self._tell_that_it_serves()
                await self._run()
        finally:
            await self._stop()

    async def _start_workers(self) -> None:
        base, home, free = self._base, self._home.root, available_memory(self._settings.resources.memory)
        compared = compared_before(base, home, free)
        if compared is None:
            self._compares = "The engine compares the base with transformers, which it does once for each base."
            self._log("base", self._compares, "info")
            compared = await compare_base(base, home, free)
            self._compares = ""
        check_comparison(base, compared)
        if compared.state == UNVERIFIED:
            self._log("base", f"The base is {spoken_comparison(compared)}.", "warning")
        await self._supervisor.start()

    async def _tell_that_it_serves(self) -> None:
        store, plan = self._store, self._supervisor.placement_plan
        self._serves = True
        infos = self._environments.infos()
        store.telemetry.environments(infos)
        for plugin in {info.name.partition("/")[0] for info in infos}:
            self._conformance.changed(plugin)
        await store.patiently(lambda: store.telemetry.heartbeat(store.incarnation, "running"))
        self._log("engine", f"The engine serves {self._home.root} with the base {self._settings.base!r}.", "info")
        self._log("base", in_words(plan), "info")
        self._log("base", precision_words(self._base, self._settings, plan), "info")
        self._log("placement", plan.words, "info")
        if self._settings.resources.share == "base":
            text = '`share = "base"` under [resources] is read as "memory": sampler and trainer have a copy each.'
            self._log("placement", text, "warning")
        if self._supervisor.warning:
            self._log("base", self._supervisor.warning, "warning")

    async def _run(self) -> None:
        supervisor = self._supervisor
        await until_first(
            *(self._disk.run(), self._scheduler.run(), supervisor.run(), self._yielding.run()),
            self._cards.run(),
            *(self._heartbeat.run(supervisor), self._api.run(), self._trackers.run()),
            *([self._nodes.run()] if self._nodes is not None else []),
        )

    async def _stop(self) -> None:
        store, supervisor = self._store, self._supervisor
        with contextlib.suppress(StoreError):
            store.telemetry.heartbeat(store.incarnation, "stopping")
        await self._heartbeat.stop(supervisor)
        ends = (self._api.stop(), self._stop_workers(), self._conformance.stop(), self._environments.stop())
        await asyncio.gather(*ends, self._notifier.stop(), self._trackers.stop(), return_exceptions=True)
        with contextlib.suppress(StoreError):
            store.telemetry.heartbeat(store.incarnation, "stopped")

    async def _stop_workers(self) -> None:
        await self._supervisor.stop()
        if self._cluster is not None:
            await self._cluster.stop()

    def _log(self, kind: str, message: str, level: str) -> None:
        say(f"{level}: {message}")
        with contextlib.suppress(StoreError):
            self._store.telemetry.event(kind, message, None, level)

    def _on_environment(self, event: EnvironmentEvent) -> None:
        store, environments = self._store, self._environments
        self._log("environment", describe(event), "warning" if event.failure else "info")
        with contextlib.suppress(StoreError):
            store.telemetry.environments(environments.infos())
            if event.kind in ("loaded", "quarantined", "recovered"):
                standstills = environments.standstills(event.plugin, event.version)
                store.environments.replace_failing(event.plugin, event.version, standstills)
        if event.kind in ("loaded", "removed") and self._serves:  # checks would distort what the start measures
            self._conformance.changed(event.plugin)
        loaded = event.kind == "loaded" and self._serves
        self._scheduler.wake(names_of(event.plugin, environments.infos()) if loaded else frozenset())

    def _played(self) -> Set[str] | None:
        with contextlib.suppress(StoreError):
            return self._store.experience.environment_versions()
        return None


M_ARENA_MAX = -8


def keep_to_one_heap() -> None:
    """One heap for all threads, with glibc: a dozen waiting threads otherwise keep their largest heaps."""
    tune = getattr(ctypes.CDLL(None), "mallopt", None)
    if tune is not None:
        tune(M_ARENA_MAX, 1)


YOUNG_OBJECTS = 100_000
"""Frequent looks for cycles among ten thousand lasting objects took a tenth of the engine's time."""


def run(home: Home) -> int:
    """Serve until stopped; an exit code, after a sentence on standard error if not 0."""
    switch_on("engine")
    keep_to_one_heap()
    lock = EngineLock(home.lock)
    began = time.time()
    try:
        make_home(home, say)
        lock.acquire()
        refuse_second(home)
        if not is_current(home.database):
            open_database(home.database)
        lock.starting("The engine reads and checks the base.")
        settings = load_settings(home)
        keep_within(settings.resources.cores)
        base = load_base(settings.base)
        check_base(base)
        check_use(home, HomeBase(settings.base, base.fingerprint), base.fingerprint)
        lock.starting("The engine looks at the machine, and measures how fast it is where that is not known yet.")
        placement_plan = plan(home, base, without_nodes(home, settings))
        store = Store(home.database, settings.base, base.fingerprint, placement_plan.kinds)
        lock.started()
        store.tasks.adopt(base.fingerprint)
        store.tasks.forget_stops(began)
    except MarlaasError as error:
        say(f"marlaas: {error}")
        lock.release()
        return error.exit_code
    except OSError as error:
        say(f"marlaas: The home {home.root} cannot be used: {error}.")
        return 2
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
    try:
        asyncio.run(_serve(home, settings, base, placement_plan, store, lock))
        return 0
    except MarlaasError as error:
        say(f"marlaas: {error}")
        return error.exit_code
    finally:
        store.close()
        lock.release()


async def _serve(
    home: Home, settings: Settings, base: BaseModel, placement_plan: PlacementPlan, store: Store, lock: EngineLock
) -> None:
    await Engine(home, settings, base, placement_plan, store, lock.keep).serve()


def refuse_second(home: Home) -> None:
    """Raises ``HomeLocked`` if another engine lives without its lock file."""
    engine = None
    with contextlib.suppress(StoreError), Reader(home.database) as reader:
        engine = reader.engine()
    if engine is None or engine.state == "stopped" or abs(time.time() - engine.heartbeat) > STALE:
        return
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(engine.pid)
        # after a reboot, or many processes, its id is another's
        if process.create_time() <= engine.heartbeat and process.status() != psutil.STATUS_ZOMBIE:
            raise HomeLocked(
                f"An engine (process {engine.pid}) serves {home.root} already, though its lock file was removed.",
                "Use it, stop it with `marlaas engine stop`, or choose another --home.",
            )


if __name__ == "__main__":
    sys.exit(run(Home(Path(sys.argv[1]))))
