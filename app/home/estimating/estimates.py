"""What tasks will take, before they are submitted: the home's past, its base and this machine, put together.

In words: ``estimate_words.py``. Reads files and the store; for environments without a past it measures what is missing
(``probing``).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from marlaas.engine.base import BaseModel, load_base
from marlaas.engine.daemon import control
from marlaas.engine.devices import available_memory
from marlaas.engine.errors import BaseModelError
from marlaas.engine.fleet import plan_of, with_sampler
from marlaas.engine.home import Home, Settings, load_settings
from marlaas.engine.spec import BaseTraits, bounded, by_base, parse
from marlaas.engine.store import PastRun, Submission
from marlaas.engine.submission import TaskEstimate, environments_of, estimate_task, rough_time, together

from ...reading.home_reader import HomeReader
from ...reading.opening import reading
from ..doctor.devices import surveyed
from ..doctor.placement import cards_used
from .probing import base_speed, episode_shape

WORKERS = ("rollout", "training")
"""The workers that hold the base."""
LEAST_CONTEXT = 512
"""Tokens of a conversation, where no plan says how many."""


@dataclass(frozen=True)
class Workers:
    """What the workers take of the memory, whatever trains."""

    memory: int
    """Bytes of all these workers together."""
    running: bool
    """Whether they run and were measured; else ``memory`` is planned, and ``free`` must have room for it."""
    free: int
    context: int
    """Tokens of a conversation, as planned."""
    problem: str = ""
    """Why the base does not fit, in a sentence."""
    cards: str = ""
    """Which cards an engine would use here, while ``memory`` and ``problem`` are planned for the processor alone."""


@dataclass(frozen=True)
class Estimates:
    """What some tasks will take."""

    tasks: tuple[TaskEstimate, ...]
    workers: Workers
    free_disk: int
    """Bytes, before tasks wait for room."""
    at_a_time: int = 32
    """Tasks that run at the same time; others wait."""

    @property
    def seconds(self) -> float | None:
        """Until all tasks are done; None where that cannot be known."""
        return together(self.tasks)

    @property
    def disk(self) -> int:
        """Bytes that all tasks leave on the disk."""
        return sum(task.disk.total for task in self.tasks)

    @property
    def memory(self) -> int:
        """Bytes of memory that the tasks add that run at the same time."""
        return sum(sorted((task.memory for task in self.tasks), reverse=True)[: self.at_a_time])


def estimate_all(home: Home, submissions: Sequence[Submission], say: Callable[[str], None] | None = None) -> Estimates:
    """Estimate validated tasks; ``say`` is told of what takes some seconds.

    Raises ``ConfigError`` where settings or base cannot be used, ``StoreError``.
    """
    settings = load_settings(home)
    base = load_base(settings.base)
    torch = with_sampler(settings, base).rollout.sampler == "torch"
    with reading(home) as reader:
        workers = _workers(home, base, settings, reader)
        past = {name: _past(reader, name, base) for name in {each.environment for each in submissions}}
    tasks = tuple(
        estimate_task(
            parse(each.config, each.name),
            past[each.environment],
            base.config,
            settings.disk.token_steps,
            torch,
            workers.context,
        )
        for each in submissions
    )
    if any(task.time is None for task in tasks) and not workers.cards:  # a card's speed is not the processor's
        tasks = tuple(
            task if task.time else _roughly(home, base, settings, task, each, say)
            for task, each in zip(tasks, submissions, strict=True)
        )
    return Estimates(tasks, workers, _free_disk(home, settings), settings.engine.tasks)


def _roughly(
    home: Home,
    base: BaseModel,
    settings: Settings,
    task: TaskEstimate,
    submission: Submission,
    say: Callable[[str], None] | None,
) -> TaskEstimate:
    """The same estimate with a rough time, where one can be measured."""
    traits = BaseTraits(base.config.hidden_size, base.config.context_length)
    spec = bounded(by_base(parse(submission.config, submission.name), traits), traits)
    first, *_ = environments_of(submission)
    shape = episode_shape(home, base, first.name, first.config, first.data)
    speed = base_speed(home, base, settings, say) if shape else None
    return replace(task, time=rough_time(spec, shape, speed)) if shape and speed else task


def _past(reader: HomeReader | None, name: str, base: BaseModel) -> list[PastRun]:
    """Past runs of an environment, found under its name with that of its plugin and without it."""
    if reader is None:
        return []
    last = name.rpartition("/")[2]
    full = [row.name for row in reader.environments() if row.name.rpartition("/")[2] == last]
    names = {name, last, *full} if len(full) <= 1 else {name}
    return reader.past_runs(sorted(names), base.fingerprint)


def _workers(home: Home, base: BaseModel, settings: Settings, reader: HomeReader | None) -> Workers:
    free = available_memory(settings.resources.memory)
    if reader is not None and control.alive(home):
        taken = sum(row.rss or 0 for row in reader.workers() if row.name in WORKERS)
        if taken:
            return Workers(taken, True, free, settings.rollout.context or LEAST_CONTEXT)
    cards = cards_used(base, settings, surveyed(home, settings.resources))
    try:
        plan = plan_of(base, settings, free)
    except BaseModelError as error:
        return Workers(0, False, free, LEAST_CONTEXT, str(error), cards)
    return Workers(plan.total, False, free, plan.context, cards=cards)


def _free_disk(home: Home, settings: Settings) -> int:
    folder = home.root
    while not folder.exists():
        folder = folder.parent
    return max(0, shutil.disk_usage(folder).free - int(settings.disk.reserve_gb * 1e9))
