"""Runs one task from its start to its end, again after a lost worker, and reports its end.

It never raises for anything that can happen to a task.
"""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace

from ..errors import (
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
from ..fairness import Payer
from ..fleet import WorkerSupervisor
from ..racing import until_first
from ..spec import TaskSpec
from ..store import NO_REASON, Reason, ReasonCode
from ..train import EvalRun, TrainRun, check_ready

MAX_LOSSES = 5
"""Deaths of workers under a task without a step between; then it pauses, for it may kill them."""

Runner = TrainRun | EvalRun


@dataclass(frozen=True)
class Ending:
    """How a task's run ends."""

    state: str
    """The task's state from now on; *running* if the next engine continues from its last commit."""
    reason: Reason = NO_REASON
    again: bool = False


def done(remark: str = "") -> Ending:
    """It needs no more steps."""
    return Ending("done", Reason(ReasonCode.ENDED if remark else ReasonCode.NONE, remark))


def blocked(why: str) -> Ending:
    """It continues by itself once its needs are there."""
    return Ending("queued", Reason(ReasonCode.BLOCKED, why))


def paused(why: str, again: bool) -> Ending:
    """It paused itself."""
    return Ending("paused", Reason(ReasonCode.ITSELF, why), again)


def failed(why: str, again: bool = False) -> Ending:
    """It cannot continue."""
    return Ending("failed", Reason(ReasonCode.FAILED, why), again)


async def run_task(
    task: int,
    spec: TaskSpec,
    supervisor: WorkerSupervisor,
    started: Callable[[Runner], None],
    tell: Callable[[str, int], None] = lambda event, task: None,
) -> Ending:
    """Run a task to its end, or until something stops it. Cancelling leaves it at its last commit.

    ``started`` is called with the runner once nothing blocks the task; ``tell`` sends notifications.
    """
    losses, last = 0, -1
    while True:
        payer = Payer(spec.tenant, task, spec.queue.priority)
        runner, lost, deaths = None, supervisor.lost, supervisor.deaths
        try:
            if supervisor.yielding is not None:
                await check_ready(task, spec, supervisor.store, supervisor.environments, supervisor.shortage)
                supervisor.wake()
            services = replace((await supervisor.services()).of(payer, spec.train.deterministic), tell=tell)
            lost, deaths = supervisor.lost, supervisor.deaths
            runner = (EvalRun if spec.kind == "eval" else TrainRun)(services, task, spec, started)
            await _unless_lost(runner, lost)
            return Ending("running") if runner.drained else done(runner.remark)
        except WorkerDied as error:
            step = runner.progress if runner else last
            yielding = supervisor.yielding is not None
            if not isinstance(error, StateLost):
                await until_first(lost.wait(), supervisor.noticed(deaths))
            if not (yielding or supervisor.mended):
                losses, last = (losses + 1 if step <= last else 1), max(step, last)
            if losses >= MAX_LOSSES:
                made = "measured versions" if spec.kind == "eval" else "steps"
                reason = f"Workers died {losses} times after {max(last, 0)} {made} of this task: {error}"
                return paused(reason, again=True)
        except Blocked as error:
            return blocked(str(error))
        except DatabaseLocked:  # in a write without retries: continue from the last commit once it is free
            await supervisor.store.unlocked()
        except AdapterUnreachable as error:
            return blocked(f"waiting for its adapters: {error}")
        except DatabaseUnwritable as error:
            return blocked(str(error))
        except (Paused, StoreError, AdapterError) as error:
            return paused(str(error), again=not isinstance(error, Fruitless))
        except (ConfigError, ValueError) as error:
            return failed(str(error))
        except MarlaasError as error:
            return failed(str(error), again=True)
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{place.filename.rsplit('/', 1)[-1]}, line {place.lineno}"
            with contextlib.suppress(StoreError):
                supervisor.store.telemetry.event("bug", traceback.format_exc(), task, "error")
            reason = f"An error in marlaas itself ({where}): {type(error).__name__}: {error}"
            return failed(reason, again=True)


async def _unless_lost(runner: Runner, lost: asyncio.Event) -> None:
    if 0 not in await until_first(runner.run(), lost.wait()):
        raise WorkerDied("A worker died.")
