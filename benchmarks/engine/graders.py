"""How near environments with a grader that computes come to what the processor allows: no episode may be lost.

The service is the engine's own with its default settings, and starts as many processes as the work asks for; a function
answers in place of the model. Beside it six other tasks play a quick environment, in both arms.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

from marlaas.engine.devices.processor import own_cores
from marlaas.engine.environments.process.launch import NICE
from marlaas.engine.environments.protocol import EpisodeSpec
from marlaas.engine.environments.service import EnvironmentService
from marlaas.engine.racing import until_first
from marlaas.plugins.messages import Ask, Reply

from ..report.figures import Row, Section, Series
from .environments import in_a_home

GRADE = """\
def grade(turns):
    x = 1
    for _ in range(turns):
        x = x * 1103515245 + 12345 & 0xFFFFFFFF
    return x
"""
GRADED = (
    GRADE
    + """

from marlaas.plugins import env


@env
async def inline(ep, turns: int = 1):
    await ep.ask("x")
    return float(grade(turns) > 0)


@env
def plain(ep, turns: int = 1):
    ep.ask("x")
    return float(grade(turns) > 0)
"""
)
BARE = (
    GRADE
    + """
import os, sys, time
os.nice({nice})
turns, seconds = int(sys.argv[1]), float(sys.argv[2])
began, graded = time.monotonic(), 0
while time.monotonic() - began < seconds:
    grade(turns)
    graded += 1
print(graded / (time.monotonic() - began))
"""
)
SECONDS = 0.05
"""Of processor time that one grading takes."""
EPISODES = 192
"""Under way at any time: what a task with default settings has."""
SETTLE = 10.0
"""Seconds until its processes stand."""
OTHERS = 6
EACH = 8
PAUSE = 0.05
"""Tasks beside it, episodes of each, and the seconds until the model answers them."""


@dataclass(frozen=True)
class Graded:
    """What came of episodes with a grader."""

    rate: float
    """Episodes a second, once its processes stand."""
    lost: float
    processes: float


def measure(quick: bool) -> Section:
    """About five minutes."""
    rounds, cycles, seconds = (2, 2, 10.0) if quick else (5, 5, 20.0)
    turns = calibrated()
    found: dict[str, list[Graded]] = {"inline": [], "plain": []}
    bare: dict[str, list[float]] = {"inline": [], "plain": []}
    for _ in range(rounds):
        for name in found:
            found[name].append(in_a_home(partial(graded, name=name, turns=turns, settle=SETTLE, cycles=cycles)))
            bare[name].append(in_a_home(partial(alone, turns=turns, seconds=seconds)))
    words = {"inline": "`async def`, which it blocks", "plain": "plain `def`"}
    rows = []
    for name, what in words.items():
        rates, lost = (Series(tuple(one)) for one in zip(*((g.rate, g.lost) for g in found[name]), strict=True))
        rates_of = Row(
            f"episodes with a grader of 50 ms in {what}",
            "1/s",
            rates,
            Series(tuple(bare[name])),
            other="bare processes, one for each core",
            higher_is_better=True,
            goal="within 10 %",
        )
        processes = Series(tuple(one.processes for one in found[name]))
        rows += [rates_of, Row("lost episodes of these", "", lost, goal="none"), Row("processes", "", processes)]
    return Section("graders", "Environments with graders that compute", METHOD, tuple(rows))


METHOD = f"""A grader of {1000 * SECONDS:.0f} ms of processor time, in Python, inline in an environment with default
settings, with {EPISODES} episodes under way; a function in place of the model. Beside it {OTHERS} other tasks play a
quick environment, {EACH} episodes each. Episodes are timed once its processes stand. *Bare processes*: the
same grader in a loop, one for each core at the same priority, beside the same six tasks."""


def calibrated() -> int:
    """Turns of the grader's loop that take ``SECONDS`` of processor time here."""
    space: dict[str, object] = {}
    exec(GRADE, space)
    grade = space["grade"]
    assert callable(grade)
    times = []
    for _ in range(5):
        began = process_time()
        grade(200_000)
        times.append(process_time() - began)
    return int(200_000 * SECONDS / median(times))


async def graded(home: Path, name: str, turns: int, settle: float, cycles: int) -> Graded:
    """Play episodes with a grader beside others.

    Threads that began together end together, so what ends within a time would be chance: each of the episodes that
    follow one another is timed from its end to that of the one ``cycles`` later.
    """
    ends: list[list[float]] = [[] for _ in range(EPISODES)]
    lost, began = 0, perf_counter()
    spec = EpisodeSpec("train", index=0, seed=0, member=0, config={"turns": turns})

    async def one_after_the_other(own: list[float]) -> None:
        nonlocal lost
        while True:
            outcome = await service.play(lease, spec, answer, counts=True)
            lost += outcome.status != "ok"
            if perf_counter() - began > settle:
                own.append(perf_counter())
                if all(len(one) > cycles for one in ends):
                    enough.set()

    async with beside_others(home) as service:
        with await service.bind(f"graded/{name}") as lease:
            enough = asyncio.Event()
            playing = [asyncio.ensure_future(one_after_the_other(own)) for own in ends]
            await until_first(enough.wait(), *playing)
            processes = len(lease.serving.pids)
            for one in playing:
                one.cancel()
            await asyncio.gather(*playing, return_exceptions=True)
    return Graded(sum(cycles / (own[cycles] - own[0]) for own in ends), float(lost), float(processes))


async def alone(home: Path, turns: int, seconds: float) -> float:
    """Gradings a second of bare processes beside the same others."""
    async with beside_others(home):
        code = BARE.format(nice=NICE)
        started = [
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", code, str(turns), str(seconds)),
                stdout=subprocess.PIPE,
                start_new_session=True,  # as those of plugins: the kernel may divide the cores among sessions
            )
            for _ in range(len(own_cores()) or 1)
        ]
        answers = await asyncio.gather(*(process.communicate() for process in started))
        return sum(float(said) for said, _ in answers)


@asynccontextmanager
async def beside_others(home: Path) -> AsyncIterator[EnvironmentService]:
    """A service with which other tasks play a quick environment meanwhile."""
    (home / "plugins" / "graded.py").write_text(GRADED)
    service = EnvironmentService([home / "plugins"], home / "scratch")
    await service.start()

    async def others() -> None:
        with await service.bind("sums", None, {"digits": 2}) as lease:
            spec = EpisodeSpec("train", index=0, seed=0, member=0, config=lease.config)
            while True:
                await service.play(lease, spec, slowly, counts=True)

    playing = [asyncio.ensure_future(others()) for _ in range(OTHERS * EACH)]
    try:
        yield service
    finally:
        for one in playing:
            one.cancel()
        await asyncio.gather(*playing, return_exceptions=True)
        await service.stop()


async def answer(_: Ask) -> Reply:
    """In place of the model."""
    return Reply("7", "stop", 0)


async def slowly(_: Ask) -> Reply:
    """In place of a model that takes its time."""
    await asyncio.sleep(PAUSE)
    return Reply("7", "stop", 0)
