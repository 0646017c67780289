"""What tasks will take before they are submitted, and how that is said."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

from marlaas.engine.daemon import control
from marlaas.engine.devices.limits import available_memory, own_cores
from marlaas.engine.errors import BaseModelError, MarlaasError
from marlaas.engine.home.paths import BUNDLED_PLUGINS, Home
from marlaas.engine.home.settings import Settings, load_settings
from marlaas.engine.machine.placement.choices import Copy, is_small
from marlaas.engine.machine.plan import plan_of, with_sampler
from marlaas.engine.models.find import BaseModel, load_base
from marlaas.engine.models.memory import BaseSpeed
from marlaas.engine.models.weights import parameters
from marlaas.engine.queue.submission.estimate import (
    EpisodeShape,
    TaskEstimate,
    TimeEstimate,
    estimate_task,
    rough_time,
    together,
)
from marlaas.engine.queue.submission.taskfile import environments_of
from marlaas.engine.spec.automatic import BaseTraits, bounded, by_base
from marlaas.engine.store.queries.learning import PastRun
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.submissions import Submission
from marlaas.plugins.messages import Ask

from ..reading import reading
from ..text.format import count, duration, line, size
from .doctor import cards_used, surveyed

if TYPE_CHECKING:
    from marlaas.engine.rollout.renderer import Renderer


# What a rough estimate rests on: a few episodes of an environment, and how fast the home's base is on this machine.
#
# Both are measured when they are asked for: episodes in a second or two, without a model; a small base once, in some
# seconds, with real workers. A large one is measured by ``marlaas base check`` alone. Whatever goes wrong leaves
# nothing.

T = TypeVar("T")

EPISODES = 8
"""Episodes that are played."""
FRESH = 60.0
"""Seconds for which what was played is remembered: a form asks again with every letter, an author edits the file."""
CHARACTERS = 4
"""Of a token, if a base's template refuses to count."""
BUSY = 3600.0
"""Seconds for which a speed counts that was measured next to an engine, which takes its part of the machine."""
ROOM = 3 << 30
"""Bytes of free memory with which two further workers are started."""
_MEASURING = "Measuring how fast this base is here, once; some seconds."

_lock = threading.Lock()
_shapes: dict[str, tuple[float, EpisodeShape | None]] = {}
_speeds: dict[str, BaseSpeed | None] = {}
"""Of this process: a home that is not made yet keeps nothing."""


def episode_shape(
    home: Home, base: BaseModel, environment: str, config: Mapping[str, Any], data: Mapping[str, Any] | None
) -> EpisodeShape | None:
    """What episodes of an environment are like, played now or a moment ago; None if none can be played."""
    key = json.dumps([str(home.root), base.fingerprint, environment, config, data], default=str, sort_keys=True)
    with _lock:
        then, shape = _shapes.get(key, (-FRESH, None))
        if time.monotonic() - then > FRESH:
            try:
                shape = _played(home, base, environment, config, data)
            except (MarlaasError, OSError, ValueError):
                shape = None
            _shapes[key] = (time.monotonic(), shape)
        return shape


def _played(
    home: Home, base: BaseModel, environment: str, config: Mapping[str, Any], data: Mapping[str, Any] | None
) -> EpisodeShape | None:
    from marlaas.engine.environments.alone import play_blind
    from marlaas.engine.environments.dependencies.interpreters import Interpreters
    from marlaas.engine.rollout.renderer import Renderer

    interpreters = Interpreters(home.venvs, load_settings(home).environments)
    folders = (BUNDLED_PLUGINS, home.plugins)
    with TemporaryDirectory(prefix="marlaas-probe-", ignore_cleanup_errors=True) as scratch:
        blind = play_blind(environment, config, EPISODES, folders, Path(scratch), interpreters, data)
        episodes = _run(blind)
    if not episodes:
        return None
    renderer = Renderer(base.path)
    tokens = [sum(_tokens(renderer, ask) for ask in one.asks) for one in episodes]
    return EpisodeShape(
        len(episodes),
        fmean(len(one.asks) for one in episodes),
        fmean(tokens),
        fmean(one.seconds for one in episodes),
    )


def _tokens(renderer: Renderer, ask: Ask) -> int:
    """Tokens of what an ask adds to its conversation."""
    try:
        return len(renderer.open(ask.messages, ask.tools))
    except (MarlaasError, ValueError):  # no conversation begins so
        return sum(len(said.content) for said in ask.messages) // CHARACTERS


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run it to its end in its own thread: whoever asks may have an event loop already."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


def base_speed(
    home: Home, base: BaseModel, settings: Settings, say: Callable[[str], None] | None = None
) -> BaseSpeed | None:
    """How fast the base is here, as measured before, or now if it is small; None if that is not known."""
    from marlaas.engine.train.trial import read_speed, write_speed

    settings = with_sampler(settings, base)
    key = key_of(base, settings)
    with _lock:
        known = read_speed(home.speeds, key) or _speeds.get(key)
        if known is not None or key in _speeds or not _quick(base, settings):
            return known
        if say is not None:
            say(_MEASURING)
        try:
            speed = _run(_measured(base, settings))
        except (MarlaasError, OSError, ValueError):
            speed = None
        _speeds[key] = speed
        if speed is not None and home.root.is_dir():
            busy = control.alive(home)
            write_speed(home.speeds, key, speed, time.time() + BUSY if busy else None)
        return speed


def key_of(base: BaseModel, settings: Settings) -> str:
    """The key of a base's speed; ``settings`` name their sampler."""
    from marlaas.engine.train.trial import speed_key

    return speed_key(base.fingerprint, settings.rollout.sampler, len(own_cores(settings.resources.cores)))


def _quick(base: BaseModel, settings: Settings) -> bool:
    """Whether it is measured in some seconds: nothing is converted, a step is short, and there is room for workers."""
    small = settings.rollout.sampler == "torch" and is_small(parameters(base))
    return small and available_memory(settings.resources.memory) > ROOM


async def _measured(base: BaseModel, settings: Settings) -> BaseSpeed | None:
    """Run a step of the default task, in a home that is removed afterwards."""
    from marlaas.engine.rollout.renderer import Renderer
    from marlaas.engine.train.trial import speed_of, try_base

    memory = plan_of(base, settings, available_memory(settings.resources.memory))
    with TemporaryDirectory(prefix="marlaas-speed-", ignore_cleanup_errors=True) as folder:
        home = Home(Path(folder, "home")).create()
        plans = {Copy("torch", memory.weights): memory}
        async with aclosing(try_base(base, home, settings, Renderer(base.path), plans)) as found:
            async for one in found:
                return speed_of(one.trial)
    return None


# What tasks will take, before they are submitted: the home's past, its base and this machine, put together.
#
# In words: ``estimate_words.py``. Reads files and the store; for environments without a past it measures what is
# missing (``base_speed``).

WORKERS = ("rollout", "training")
"""The workers that hold the base."""
LEAST_CONTEXT = 512
"""Tokens of a conversation, if no plan shows how many."""


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
        """Until all tasks are done; None if that cannot be known."""
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
    """Estimate validated tasks; ``say`` is shown of what takes some seconds.

    Raises ``ConfigError`` if settings or base cannot be used, ``StoreError``.
    """
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
    """The same estimate with a rough time, if one can be measured."""
    traits = BaseTraits(base.config.hidden_size, base.config.context_length)
    spec = bounded(by_base(submission.spec, traits), traits)
    first, *_ = environments_of(submission)
    shape = episode_shape(home, base, first.name, first.config, first.data)
    speed = base_speed(home, base, settings, say) if shape else None
    return replace(task, time=rough_time(spec, shape, speed)) if shape and speed else task


def _past(reader: Reader | None, name: str, base: BaseModel) -> list[PastRun]:
    """Past runs of an environment, found under its name with that of its plugin and without it."""
    if reader is None:
        return []
    last = name.rpartition("/")[2]
    full = [row.name for row in reader.environments() if row.name.rpartition("/")[2] == last]
    names = {name, last, *full} if len(full) <= 1 else {name}
    return reader.past_runs(sorted(names), base.fingerprint)


def _workers(home: Home, base: BaseModel, settings: Settings, reader: Reader | None) -> Workers:
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


# Estimates in words that show what they are based on. Pure.

CLOSE = 1.25
"""Past runs whose rates differ by less than this factor are given as one figure."""


def time_cell(task: TaskEstimate) -> str:
    """The time of a task, for a table."""
    if task.time is None:
        return "?"
    return _between(task.time) if task.time.played else f"~{rough(task.time.seconds)}"


def told(estimates: Estimates, environments: Sequence[str]) -> list[tuple[str, str]]:
    """(what, how much of it) for tasks on these environments, in their order."""
    return [
        ("time", _time(estimates, environments)),
        ("memory", _memory(estimates)),
        ("disk", _disk(estimates)),
    ]


def rough(seconds: float) -> str:
    """A duration rounded to what can be known: 40 s, 3 min, 2 h 10 min."""
    if seconds < 1:
        return "1 s"
    if seconds < 90:
        return f"{_two(seconds)} s"
    if seconds < 90 * 60:
        return f"{_two(seconds / 60)} min"
    return duration(round(seconds / 600) * 600)


def _two(value: float) -> int:
    """A number rounded to two figures."""
    return round(value) if value < 100 else round(value / 10) * 10


def _time(estimates: Estimates, environments: Sequence[str]) -> str:
    names = ", ".join(dict.fromkeys(line(name, 40) for name in environments))
    unknown = [name for name, task in zip(environments, estimates.tasks, strict=True) if task.time is None]
    if unknown:
        missing = ", ".join(dict.fromkeys(line(name, 40) for name in unknown))
        tokens = sum(task.most_tokens for task in estimates.tasks)
        return f"unknown: no task here has trained on {missing} yet; at most {count(tokens)} tokens are sampled"
    times = [task.time for task in estimates.tasks if task.time]
    if played := max(time.played for time in times):
        rest = f"measured on {played} episode{'' if played == 1 else 's'}: no task here has trained on "
        rest += f"{_untried(estimates, environments)} yet"
        if len(times) == 1:
            return f"about {_between(times[0])}, {rest}"
        return f"roughly {rough(estimates.seconds or 0.0)} until all are done, {rest}"
    runs = max(time.runs for time in times)
    source = f"from {runs} earlier task{'' if runs == 1 else 's'} on {names}"
    if not all(time.alike for time in times):
        source += ", with another max_tokens"
    if len(times) == 1:
        return f"{_span(times[0])}, {source}"
    return f"about {rough(estimates.seconds or 0.0)} until all are done, {source}"


def _untried(estimates: Estimates, environments: Sequence[str]) -> str:
    """The environments whose time is a rough one."""
    pairs = zip(environments, estimates.tasks, strict=True)
    return ", ".join(dict.fromkeys(line(name, 40) for name, task in pairs if task.time and task.time.played))


def _between(time: TimeEstimate) -> str:
    """A range, with its unit once if both ends have the same: 20 to 60 min."""
    least, most = rough(time.least), rough(time.most)
    number, _, unit = least.partition(" ")
    if least == most:
        return most
    return f"{number} to {most}" if most.partition(" ")[2] == unit else f"{least} to {most}"


def _span(time: TimeEstimate) -> str:
    if time.most <= CLOSE * time.least:
        return f"about {rough(time.seconds)}"
    return f"{rough(time.least)} to {rough(time.most)}"


def _memory(estimates: Estimates) -> str:
    workers = estimates.workers
    many, at_a_time = len(estimates.tasks), estimates.at_a_time
    who = "this task adds" if many == 1 else "these tasks add"
    adds = f"{who if many <= at_a_time else f'the {at_a_time} that run at a time add'} {size(estimates.memory)}"
    if workers.running:
        return f"the workers take {size(workers.memory)} now; {adds}"
    taken = f"the workers take {size(workers.memory)} of {size(workers.free)} that are free; {adds}"
    return elsewhere(workers.cards) + (line(workers.problem) or taken)


def elsewhere(cards: str) -> str:
    """The words before an estimate for the processor if an engine would use ``cards``; else empty."""
    return f"on the processor alone (an engine would use {line(cards)}, see `marlaas doctor`): " if cards else ""


def _disk(estimates: Estimates) -> str:
    adapters = sum(task.disk.adapters for task in estimates.tasks)
    trajectories = sum(task.disk.trajectories for task in estimates.tasks)
    measured = all(task.disk.measured for task in estimates.tasks)
    text = (
        f"{'about' if measured else 'at most'} {size(estimates.disk)}:"
        f" adapters {size(adapters)}, trajectories {size(trajectories)}"
    )
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
    """One task; ``seconds`` and what belongs to it are null if nothing was measured."""
    time = task.time
    return {
        "seconds": time.seconds if time else None,
        "seconds_range": [time.least, time.most] if time else None,
        "runs": time.runs if time else 0,
        "episodes_played": time.played if time else 0,
        "most_tokens": task.most_tokens,
        "memory": task.memory,
        "disk": task.disk.total,
        "disk_measured": task.disk.measured,
    }
