"""What tasks will take: from the home's past, its base and this machine."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from marlaas.engine.daemon import control
from marlaas.engine.devices.limits import available_memory
from marlaas.engine.errors import BaseModelError
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import Settings, load_settings
from marlaas.engine.machine.plan import plan_of, with_sampler
from marlaas.engine.models.find import BaseModel, load_base
from marlaas.engine.queue.submission.estimate import TaskEstimate, estimate_task, together
from marlaas.engine.store.queries import learning
from marlaas.engine.store.queries.learning import PastRun
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.submissions import Submission

from ..reading import reading
from ..text.format import count, counted, duration, line, size
from .doctor import cards_used, surveyed

LEAST_CONTEXT = 512
"""Tokens of a conversation without a plan."""
CLOSE = 1.25
"""Rates of past runs that differ by less are given as one figure."""


@dataclass(frozen=True)
class Workers:
    """Memory of the workers."""

    memory: int
    """Bytes."""
    running: bool
    """True: measured on running workers. False: planned; ``free`` needs room for it."""
    free: int
    context: int
    """Planned tokens of a conversation."""
    problem: str = ""
    """Why the base does not fit."""
    cards: str = ""
    """Cards that an engine would use; ``memory`` and ``problem`` are for the processor only."""


@dataclass(frozen=True)
class Estimates:
    """What some tasks will take."""

    tasks: tuple[TaskEstimate, ...]
    workers: Workers
    free_disk: int
    """Bytes, before tasks wait for room."""
    at_a_time: int = 32
    """Tasks that run at the same time."""

    @property
    def seconds(self) -> float | None:
        """Until all tasks are done; None if unknown."""
        return together(self.tasks)

    @property
    def disk(self) -> int:
        """Bytes."""
        return sum(task.disk.total for task in self.tasks)

    @property
    def memory(self) -> int:
        """Bytes that tasks add while they run."""
        return sum(sorted((task.memory for task in self.tasks), reverse=True)[: self.at_a_time])


def estimate_all(home: Home, submissions: Sequence[Submission]) -> Estimates:
    """Estimate validated tasks. Raises ``ConfigError`` and ``StoreError``."""
    settings = load_settings(home)
    base = load_base(settings.base)
    torch = with_sampler(settings, base).rollout.sampler == "torch"
    with reading(home) as reader:
        workers = _workers(home, base, settings, reader)
        past = {name: _past(reader, name, base) for name in {each.spec.played for each in submissions}}
    tasks = tuple(
        estimate_task(
            each.spec,
            past[each.spec.played],
            base.config,
            settings.disk.token_steps,
            torch,
            workers.context,
        )
        for each in submissions
    )
    folder = next(path for path in (home.root, *home.root.parents) if path.exists())
    free = max(0, shutil.disk_usage(folder).free - int(settings.disk.reserve_gb * 1e9))
    return Estimates(tasks, workers, free, settings.engine.tasks)


def _past(reader: Reader | None, name: str, base: BaseModel) -> list[PastRun]:
    """Past runs of an environment, by its name with and without its plugin's."""
    if reader is None:
        return []
    last = name.rpartition("/")[2]
    full = [row.name for row in reader.environments() if row.name.rpartition("/")[2] == last]
    return learning.past_runs(reader, sorted({name, last, *full} if len(full) <= 1 else {name}), base.fingerprint)


def _workers(home: Home, base: BaseModel, settings: Settings, reader: Reader | None) -> Workers:
    free = available_memory(settings.resources.memory)
    if reader is not None and control.alive(home):
        taken = sum(row.rss or 0 for row in reader.workers() if row.name in ("rollout", "training"))
        if taken:
            return Workers(taken, True, free, settings.rollout.context or LEAST_CONTEXT)
    cards = cards_used(base, settings, surveyed(home, settings.resources))
    try:
        plan = plan_of(base, settings, free)
    except BaseModelError as error:
        return Workers(0, False, free, LEAST_CONTEXT, str(error), cards)
    return Workers(plan.total, False, free, plan.context, cards=cards)


def told(estimates: Estimates, environments: Sequence[str]) -> list[tuple[str, str]]:
    """(what, how much) for tasks on these environments."""
    return [("time", _time(estimates, environments)), ("memory", _memory(estimates)), ("disk", _disk(estimates))]


def rough(seconds: float) -> str:
    """A rounded duration: 40 s, 3 min, 2 h 10 min."""
    for most, unit, name in ((90, 1, "s"), (90 * 60, 60, "min")):
        if seconds < most:
            value = max(1, seconds / unit)
            return f"{round(value) if value < 100 else round(value, -1):.0f} {name}"
    return duration(round(seconds / 600) * 600)


def _time(estimates: Estimates, environments: Sequence[str]) -> str:
    unknown = [name for name, task in zip(environments, estimates.tasks, strict=True) if task.time is None]
    names = ", ".join(dict.fromkeys(line(name, 40) for name in unknown or environments))
    if unknown:
        tokens = sum(task.most_tokens for task in estimates.tasks)
        return f"unknown: no task here has trained on {names} yet; at most {count(tokens)} tokens are sampled"
    times = [task.time for task in estimates.tasks if task.time]
    source = f"from {counted(max(time.runs for time in times), 'earlier task')} on {names}"
    if not all(time.alike for time in times):
        source += ", with another max_tokens"
    first = times[0]
    if len(times) > 1:
        span = f"about {rough(estimates.seconds or 0.0)} until all are done"
    elif first.most <= CLOSE * first.least:
        span = f"about {rough(first.seconds)}"
    else:
        span = f"{rough(first.least)} to {rough(first.most)}"
    return f"{span}, {source}"


def _memory(estimates: Estimates) -> str:
    workers = estimates.workers
    many, at_a_time = len(estimates.tasks), estimates.at_a_time
    who = "this task adds" if many == 1 else "these tasks add"
    adds = f"{who if many <= at_a_time else f'the {at_a_time} that run at a time add'} {size(estimates.memory)}"
    if workers.running:
        return f"the workers take {size(workers.memory)} now; {adds}"
    taken = f"the workers take {size(workers.memory)} of {size(workers.free)} that are free; {adds}"
    cards = f"(an engine would use {line(workers.cards)}, see `marlaas doctor`)"
    return (f"on the processor alone {cards}: " if workers.cards else "") + (line(workers.problem) or taken)


def _disk(estimates: Estimates) -> str:
    adapters = sum(task.disk.adapters for task in estimates.tasks)
    trajectories = sum(task.disk.trajectories for task in estimates.tasks)
    about = "about" if all(task.disk.measured for task in estimates.tasks) else "at most"
    text = f"{about} {size(estimates.disk)}: adapters {size(adapters)}, trajectories {size(trajectories)}"
    if estimates.disk <= estimates.free_disk:
        return text
    return f"{text}; only {size(estimates.free_disk)} are free, and tasks will wait for room"


def as_json(estimates: Estimates) -> dict[str, Any]:
    """All tasks together, for ``--json``."""
    workers = estimates.workers
    return {
        "seconds": estimates.seconds,
        "disk": estimates.disk,
        "disk_free": estimates.free_disk,
        "memory": estimates.memory,
        "workers_memory": workers.memory,
        "workers_running": workers.running,
        "memory_free": workers.free,
        "problem": workers.problem,
        "cards": workers.cards,
    }


def task_json(task: TaskEstimate) -> dict[str, Any]:
    """``seconds`` and its kin are null without a measurement."""
    time = task.time
    return {
        "seconds": time.seconds if time else None,
        "seconds_range": [time.least, time.most] if time else None,
        "runs": time.runs if time else 0,
        "episodes_played": 0,  # version 0.1 played some for an environment without a past
        "most_tokens": task.most_tokens,
        "memory": task.memory,
        "disk": task.disk.total,
        "disk_measured": task.disk.measured,
    }
