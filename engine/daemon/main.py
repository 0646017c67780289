"""The engine process: lock, store, environments, workers, queue; and an orderly end on Ctrl-C, SIGTERM or *stop*.

Run as ``python -m marlaas.engine.daemon.main HOME`` or in the foreground by ``marlaas engine run``.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import sys
import time
from collections.abc import Sequence, Set
from pathlib import Path

from ..api import Api, FigureReader, Serving
from ..base import BaseModel, MemoryPlan, check_base, load_base
from ..devices import keep_within
from ..environments import EnvironmentEvent, EnvironmentInfo, EnvironmentService, Interpreters
from ..errors import MarlaasError, StoreError
from ..fairness import Ledger
from ..faults import switch_on
from ..fleet import PlacementPlan, WorkerSupervisor, YieldLoop
from ..home import BUNDLED_PLUGINS, DiskGuard, Home, Settings, load_settings
from ..racing import until_first
from ..scheduler import Scheduler
from ..store import Store, is_current
from ..submission import HomeBase, check_serve
from .cards import CardMonitor
from .conformance import background
from .control import make_home, open_database
from .heap import keep_to_one_heap
from .heartbeat import Heartbeat
from .lock import EngineLock
from .notifier import Notifier
from .planning import Planner, cluster_of, elsewhere, plan, without_nodes
from .rebalancing import Rebalancing
from .starting import start_up

YOUNG_OBJECTS = 100_000
"""New objects after which Python looks for cycles, a hundredth of a second long. Thousands of messages and futures come
and go each second without any. With many tasks some ten thousand objects stay for the time of an episode, or until
their step: a look at all of them after every few episodes took a tenth of the engine's time. Objects that exist after
the imports are frozen, and not looked at again."""


def run(home: Home) -> int:
    """Serve a home until told to stop; returns an exit code, after one sentence on standard error if it is not 0."""
    switch_on("engine")
    keep_to_one_heap()
    lock = EngineLock(home.lock)
    began = time.time()
    try:
        make_home(home, say)
        lock.acquire()
        if not is_current(home.database):
            open_database(home.database)
        lock.starting("The engine reads and checks the base.")
        settings = load_settings(home)
        keep_within(settings.resources.cores)
        base = load_base(settings.base)
        check_base(base)
        check_serve(home, HomeBase(settings.base, base.fingerprint))
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
        return asyncio.run(_serve(home, settings, base, placement_plan, store))
    except MarlaasError as error:
        say(f"marlaas: {error}")
        return error.exit_code
    finally:
        store.close()
        lock.release()


async def _serve(home: Home, settings: Settings, base: BaseModel, placement_plan: PlacementPlan, store: Store) -> int:
    def log(kind: str, message: str, level: str) -> None:
        say(f"{level}: {message}")
        with contextlib.suppress(StoreError):
            store.telemetry.event(kind, message, None, level)

    def on_environment(event: EnvironmentEvent) -> None:
        log("environment", describe(event), "warning" if event.failure else "info")
        with contextlib.suppress(StoreError):
            store.telemetry.environments(environments.infos())
            if event.kind in ("loaded", "quarantined", "recovered"):
                standstills = environments.standstills(event.plugin, event.version)
                store.failing.replace(event.plugin, event.version, standstills)
        if event.kind in ("loaded", "removed"):
            conformance.changed(event.plugin)
        loaded = event.kind == "loaded" and started  # at the start every plugin is loaded: no task is hurried for that
        scheduler.wake(names_of(event.plugin, environments.infos()) if loaded else frozenset())

    def played() -> Set[str] | None:
        with contextlib.suppress(StoreError):
            return store.experience.environment_versions()
        return None

    started = False
    interpreters = Interpreters(home.venvs, settings.environments, settings.resources.nice)
    folders = [BUNDLED_PLUGINS, home.plugins]
    environments = EnvironmentService(
        folders, home.scratch, on_environment, needed=played, interpreters=interpreters, earlier=store.failing.all()
    )
    ledger = Ledger()
    heartbeat = Heartbeat(store, ledger, environments.outcomes, lambda: scheduler.account(), lambda: scheduler.note)
    disk = DiskGuard(home, settings.disk, log)
    api = Api(store, settings.api, home, log)
    cluster = cluster_of(home, settings, base)
    planner = Planner(home, base, settings, cluster, log)
    supervisor = WorkerSupervisor(
        home,
        settings,
        base,
        placement_plan,
        store,
        environments,
        ledger,
        disk.shortage,
        log,
        lambda failed, ours: planner.plan(failed, ours, rebalancing.times),
        api.endpoints,
        cluster,
    )
    rebalancing = Rebalancing(
        supervisor, ledger, lambda *asked: elsewhere(base, settings, supervisor.failed, *asked), log, time.monotonic()
    )
    notifier = Notifier(settings.notify.command, home, log)
    patience = 60 * settings.notify.blocked_minutes
    scheduler = Scheduler(store, supervisor, settings.engine.tasks, tell=notifier.tell, patience=patience)
    serving = Serving(store, supervisor, settings.base, settings.api.requests_per_minute)
    yielding = YieldLoop(
        store, supervisor, settings.resources, log, lambda: scheduler.busy or serving.busy, scheduler.wake
    )
    conformance = background(environments, store, supervisor.ruler(), log)
    nodes = planner.monitor(store, supervisor, scheduler.settle)
    hosts = planner.hosts(environments, supervisor)
    cards = CardMonitor(store, settings.resources, supervisor, log)
    api.serve(serving)
    api.show(FigureReader(home.database, ledger).rows)
    _stop_on_signals(scheduler)
    store.serve()
    try:
        start = until_first(yielding.run(), asyncio.gather(environments.start(), supervisor.start()))
        if not await start_up(start, store, lambda: scheduler.stopping, lambda: supervisor.waits):
            return 0
        started = True
        store.telemetry.environments(environments.infos())
        await store.patiently(lambda: store.telemetry.heartbeat(store.incarnation, "running"))
        log("engine", f"The engine serves {home.root} with the base {settings.base!r}.", "info")
        log("base", in_words(placement_plan.memory), "info")
        log("placement", placement_plan.words, "info")
        if supervisor.warning:
            log("base", supervisor.warning, "warning")
        await until_first(
            *(disk.run(), scheduler.run(), supervisor.run(), yielding.run()),
            *(conformance.run(), cards.run(), rebalancing.run(), heartbeat.run(supervisor), api.run()),
            *([nodes.run()] if nodes is not None else []),
            *([hosts.run()] if hosts is not None else []),
        )
    finally:
        with contextlib.suppress(StoreError):
            store.telemetry.heartbeat(store.incarnation, "stopping")
        await heartbeat.stop(supervisor)
        ends = (api.stop(), planner.stop(supervisor.stop()), environments.stop(), notifier.stop())
        await asyncio.gather(*ends, return_exceptions=True)
        with contextlib.suppress(StoreError):
            store.telemetry.heartbeat(store.incarnation, "stopped")
    return 0


def say(text: str) -> None:
    """One line on standard error, without what a terminal would obey; a full disk or a closed terminal is no reason
    to end."""
    with contextlib.suppress(OSError):
        print("".join(c if c.isprintable() else " " for c in text), file=sys.stderr, flush=True)


def in_words(memory: Sequence[MemoryPlan]) -> str:
    """One sentence on what was planned; it depends on what was free."""
    conversations = " and ".join(f"{plan.sequences} conversations of {plan.context:,} tokens" for plan in memory)
    return f"Planned are {conversations} and {sum(plan.total for plan in memory) / 1e9:.1f} GB of memory."


def names_of(plugin: str, infos: Sequence[EnvironmentInfo]) -> frozenset[str]:
    """All names by which tasks may refer to the environments of a plugin."""
    whole = {info.name for info in infos if info.name.partition("/")[0] == plugin}
    return frozenset(whole | {name.rpartition("/")[2] for name in whole})


_SAID = {
    "rejected": "broken",
    "quarantined": "failing",
    "recovered": "ready again",
    "died": "its process died",
    "elsewhere": "not on all nodes",
}
"""Kinds of events whose word is another one on the screens."""


def describe(event: EnvironmentEvent) -> str:
    """One sentence on what happened to an environment: which, what, why, where."""
    text = f"Environment {event.plugin}: {_SAID.get(event.kind, event.kind)}"
    if event.failure is not None:
        place = f"{event.failure.file}:{event.failure.line}" if event.failure.line else event.failure.file
        text += f", {event.failure.message}" + (f" ({place})" if place else "")
    return f"{text}, version {event.version}" if event.version else text


def _stop_on_signals(scheduler: Scheduler) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, scheduler.stop)


if __name__ == "__main__":
    sys.exit(run(Home(Path(sys.argv[1]))))
