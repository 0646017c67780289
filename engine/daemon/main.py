"""The engine process: prepares lock, settings, base, plan and store, then runs ``Engine``.

Run as ``python -m marlaas.engine.daemon.main HOME`` or in the foreground by ``marlaas engine run``.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from ..devices.limits import keep_within
from ..errors import HomeLocked, MarlaasError, StoreError
from ..faults import switch_on
from ..home.paths import Home
from ..home.settings import Settings, load_settings
from ..models.find import BaseModel, load_base
from ..models.weights import check_base
from ..queue.submission.queue import HomeBase, check_use
from ..store.queries.reader import Reader
from ..store.schema import is_current
from ..store.store import Store
from .control import STALE, make_home, open_database
from .engine import Engine, say
from .lock import EngineLock
from .planning import plan, without_nodes

if TYPE_CHECKING:
    from ..machine.plan import PlacementPlan

# Settings of the C library's heap.

M_ARENA_MAX = -8


def keep_to_one_heap() -> None:
    """Let all threads of this process take memory from one heap, if its C library is glibc.

    Otherwise each of a dozen waiting threads keeps its own heap (glibc's arenas) at its largest size.
    """
    tune = getattr(ctypes.CDLL(None), "mallopt", None)
    if tune is not None:
        tune(M_ARENA_MAX, 1)


# The engine process: prepares lock, settings, base, plan and store, then runs ``Engine``.
#
# Run as ``python -m marlaas.engine.daemon.main HOME`` or in the foreground by ``marlaas engine run``.

YOUNG_OBJECTS = 100_000
"""New objects until Python looks for cycles. With many tasks ten thousand objects stay for an episode or a step:
frequent looks at them took a tenth of the engine's time."""


def run(home: Home) -> int:
    """Serve a home until stopped; returns an exit code, after one sentence on standard error if it is not 0."""
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
        check_use(home, HomeBase(settings.base, base.fingerprint), base.fingerprint, serves=True)
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
    """Raise ``HomeLocked`` if another engine lives and its lock file was removed."""
    engine = None
    with contextlib.suppress(StoreError), Reader(home.database) as reader:
        engine = reader.engine()
    if engine is None or engine.state == "stopped" or abs(time.time() - engine.heartbeat) > STALE:
        return
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(engine.pid)
        # after a reboot, or many processes, another one has its id
        if process.create_time() <= engine.heartbeat and process.status() != psutil.STATUS_ZOMBIE:
            raise HomeLocked(
                f"An engine (process {engine.pid}) serves {home.root} already, though its lock file was removed.",
                "Use it, stop it with `marlaas engine stop`, or choose another --home.",
            )


if __name__ == "__main__":
    sys.exit(run(Home(Path(sys.argv[1]))))
