"""How fast environments are: from a saved file to its serving, episodes a second, and a quick one among a thousand.

The service is the engine's own, with a real process for each plugin version; a function answers in place of the model,
so that nothing but environments is measured. Every round has a fresh home.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TypeVar

import psutil

from marlaas.engine.environments.process.launch import Folders
from marlaas.engine.environments.protocol import EnvironmentEvent, EpisodeSpec
from marlaas.engine.environments.served_version import Lease
from marlaas.engine.environments.service import EnvironmentService
from marlaas.plugins.messages import Ask, Reply

from ..report.figures import Row, Section, Series
from .environments_worker import Driver

PLUGIN = """\
# /// script
# [tool.marlaas]
# workers = 1
# ///
from marlaas.plugins import env


@env
async def sums(ep, digits: int = 2):
    a, b = (ep.rng.randrange(10**digits) for _ in range(2))
    reply = await ep.ask(f"{a}+{b}=")
    return reply.text.strip() == str(a + b)
"""
AT_ONCE = 64
"""Episodes under way while rates are measured."""
WAITING = 500
SPEC = EpisodeSpec("train", index=0, seed=0, member=0, config={"digits": 2})
REPLY = Reply("7", "stop", 0)
T = TypeVar("T")


@dataclass(frozen=True)
class Crowd:
    """Quick episodes in one worker, in milliseconds each."""

    alone: list[float]
    crowded: list[float]
    """Beside many that wait."""
    megabytes: float
    """Of the worker, then."""


def measure(quick: bool) -> Section:
    """About two minutes."""
    rounds, edits, episodes, probes = (2, 10, 2000, 100) if quick else (7, 40, 20_000, 1000)
    saves: list[list[float]] = []
    worker: list[float] = []
    engine: list[float] = []
    crowds: list[Crowd] = []
    for _ in range(rounds):
        saves.append(in_a_home(lambda home: saved_to_serving(home, edits)))
        worker.append(in_a_home(lambda home: worker_rate(home, episodes)))
        engine.append(in_a_home(lambda home: engine_rate(home, episodes)))
        crowds.append(in_a_home(lambda home: among_waiting(home, probes)))
    rate, quick_one = "5,000 a second", f"a quick episode beside {WAITING:,} that wait"
    rows = (
        Row("save to serving, median", "ms", quantiles(saves, 0.5)),
        Row("save to serving, 95th percentile", "ms", quantiles(saves, 0.95), goal="under 500 ms"),
        Row("episodes through one worker", "1/s", Series(tuple(worker)), higher_is_better=True, goal=rate),
        Row("the same, played by the engine", "1/s", Series(tuple(engine)), higher_is_better=True, goal=rate),
        *(
            Row(
                f"{quick_one}, {name}",
                "ms",
                quantiles([crowd.crowded for crowd in crowds], share),
                quantiles([crowd.alone for crowd in crowds], share),
                other="beside none",
                goal="no growth",
            )
            for name, share in (("median", 0.5), ("95th percentile", 0.95))
        ),
        Row(
            f"memory of a worker with {WAITING:,} waiting episodes",
            "MB",
            Series(tuple(crowd.megabytes for crowd in crowds)),
        ),
    )
    return Section("environments", "Environments", METHOD, rows)


METHOD = f"""An environment of one turn, in a process of its own, and a function in place of the model. *Save to
serving*: a file is replaced by another content, as editors do, and the clock runs until that has been compiled,
imported, described and played up to its first question, and new groups get it; one edit after the other. *Episodes
through one worker*: {AT_ONCE} are under way at any time; first with the least at the other end of the wire that can
answer, then with the engine's own service. *Beside {WAITING:,}*: quick episodes, one after the other, while as many
others wait for a reply in the same worker, and the same before those began."""


def in_a_home(work: Callable[[Path], Awaitable[T]]) -> T:
    """Run something with a plugin folder and a scratch folder of its own."""

    async def run() -> T:
        with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as folder:
            home = Path(folder)
            (home / "plugins").mkdir()
            save(home, PLUGIN)
            return await work(home)

    return asyncio.run(run())


def save(home: Path, text: str) -> None:
    """As editors do: a new file takes the place of the old one."""
    unfinished = home / "plugins" / ".sums.py.new"
    unfinished.write_text(text)
    unfinished.replace(home / "plugins" / "sums.py")


async def saved_to_serving(home: Path, edits: int) -> list[float]:
    """Milliseconds from each of many edits to its serving."""
    loaded: asyncio.Queue[EnvironmentEvent] = asyncio.Queue()
    service = EnvironmentService([home / "plugins"], home / "scratch", loaded.put_nowait)
    await service.start()
    try:
        await _next_end(loaded)
        times = []
        for edit in range(edits):
            began = perf_counter()
            save(home, f"{PLUGIN}\n# edit {edit}\n")
            event = await _next_end(loaded)
            times.append(1e3 * (perf_counter() - began))
            if event.kind != "loaded":
                raise RuntimeError(f"An edit was {event.kind}.")
        return times
    finally:
        await service.stop()


async def _next_end(events: asyncio.Queue[EnvironmentEvent]) -> EnvironmentEvent:
    """The next event that ends a loading; that one takes long is told before, where the machine is busy."""
    while (event := await events.get()).kind == "loading":
        pass
    return event


async def worker_rate(home: Path, episodes: int) -> float:
    """Episodes a second through a bare worker."""
    driver = Driver("sums", SPEC, REPLY, episodes, AT_ONCE)
    return await driver.run(home / "plugins" / "sums.py", Folders.of(home / "scratch", "sums"))


async def engine_rate(home: Path, episodes: int) -> float:
    """Episodes a second through the engine's service and one worker."""

    async def some(count: int) -> None:
        for _ in range(count):
            outcome = await service.play(lease, SPEC, answer)
            if outcome.status != "ok":
                raise RuntimeError(f"An episode ended as {outcome.status}: {outcome.failure}")

    async with served(home) as (service, lease):
        began = perf_counter()
        await asyncio.gather(*(some(episodes // AT_ONCE) for _ in range(AT_ONCE)))
        return episodes // AT_ONCE * AT_ONCE / (perf_counter() - began)


async def among_waiting(home: Path, probes: int) -> Crowd:
    """Quick episodes beside none and beside many that wait."""
    asked = 0

    async def never(_: Ask) -> Reply:
        nonlocal asked
        asked += 1
        if asked == WAITING:
            all_wait.set()
        return await asyncio.Future()

    async def quick() -> list[float]:
        times = []
        for _ in range(probes):
            began = perf_counter()
            await service.play(lease, SPEC, answer)
            times.append(1e3 * (perf_counter() - began))
        return times

    all_wait = asyncio.Event()
    async with served(home) as (service, lease):
        alone = await quick()
        waiting = [asyncio.ensure_future(service.play(lease, SPEC, never)) for _ in range(WAITING)]
        await all_wait.wait()
        crowded = await quick()
        megabytes = psutil.Process(lease.serving.pid or os.getpid()).memory_info().rss / 2**20
        for episode in waiting:
            episode.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return Crowd(alone, crowded, megabytes)


async def answer(_: Ask) -> Reply:
    """In place of the model."""
    return REPLY


@asynccontextmanager
async def served(home: Path) -> AsyncIterator[tuple[EnvironmentService, Lease]]:
    """The engine's service and a lease on the plugin."""
    service = EnvironmentService([home / "plugins"], home / "scratch")
    await service.start()
    try:
        with await service.bind("sums") as lease:
            yield service, lease
    finally:
        await service.stop()


def quantiles(rounds: list[list[float]], share: float) -> Series:
    """The value that ``share`` of each round's do not exceed."""
    return Series(tuple(sorted(times)[min(len(times) - 1, int(share * len(times)))] for times in rounds))
