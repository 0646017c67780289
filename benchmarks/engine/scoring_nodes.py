"""Scores that mostly wait, over one node and over four: how many are had a second.

RollArt (arXiv 2512.22560) gives stateless reward work to workers of its own, which grow over many machines. What waits
for somebody else needs hardly any processor time, so nodes that share one machine's cores can show it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter

from marlaas.engine.devices.plan import EnvironmentHost
from marlaas.engine.environments.protocol import EpisodeSpec
from marlaas.engine.environments.service import EnvironmentService
from marlaas.engine.fleet.environment_hosts import EnvironmentHosts
from marlaas.engine.workers.launcher import Launcher, LocalLauncher
from marlaas.plugins.messages import Ask, Reply

from ..report.figures import Row, Section, Series
from .environments import in_a_home

WAIT = 1.0
"""Seconds that each score waits."""
CORES = 1
"""That each node is said to have; a version whose scores wait may have eight workers for each."""
WORKERS = 8
EACH = 4
"""Scores for each worker in the round that is measured: a whole number, so that all workers end together."""
WAITING = f"""
import time
from marlaas.plugins import env

@env
async def waits(ep):
    ep.task = {{}}
    await ep.ask("x")

@waits.score
def score(task, transcript):
    time.sleep({WAIT})
    return 1.0
"""
NODES = (1, 2, 4)
REPETITIONS = 3


@dataclass(frozen=True)
class Rate:
    """What so many nodes reach."""

    scores: float
    """A second, once there are as many workers as there will be."""
    workers: float


def measure(quick: bool) -> Section:
    """About two minutes; under one when quick."""
    found: dict[int, list[Rate]] = {count: [] for count in NODES}
    for _ in range(1 if quick else REPETITIONS):
        for count in NODES:
            found[count].append(in_a_home(partial(scored, count=count)))
            print(f"  {count} nodes: {found[count][-1]}", flush=True)
    alone = Series(tuple(one.scores for one in found[1]))
    rows = [
        Row(
            f"scores that wait {WAIT:g} s, over {count} nodes",
            "1/s",
            Series(tuple(one.scores for one in found[count])),
            alone,
            "one node",
            higher_is_better=True,
            goal=f"{(1 + CORES * count) / (1 + CORES):g} ×, as there are workers",
        )
        for count in NODES[1:]
    ]
    rows += [
        Row(f"scoring workers over {count} nodes", "", Series(tuple(one.workers for one in found[count])))
        for count in NODES
    ]
    return Section("scoring_nodes", "Scores that wait, over several nodes", METHOD, tuple(rows), "")


METHOD = (
    f"A score function that sleeps for {WAIT:g} s, in the real service with its real pool of scoring workers. The"
    f" engine's machine is said to have {CORES} core, and so has each further node: a process host on this machine,"
    " with folders of its own. Files go there by their digest, and all that a worker says goes through the host."
    f" A version whose scores wait may have {WORKERS} workers for each core. After two rounds in which workers are"
    f" started, {EACH} scores are asked of each worker, all at once, and that round is measured. Nodes share this"
    " machine's cores, so work that computes would not scale."
)


async def scored(home: Path, count: int) -> Rate:
    """The rate over so many nodes, of which the first is the engine's machine."""
    (home / "plugins" / "waits.py").write_text(WAITING)
    service = EnvironmentService([home / "plugins"], home / "scratch")
    service._budget.cores = service._reach._cores = CORES
    wanted = [EnvironmentHost(f"node-{number}", f"node-{number}", CORES) for number in range(2, count + 1)]
    hosts = EnvironmentHosts(
        service, lambda: wanted, _here, home / "logs", home / "scratch", 0, lambda kind, sentence, level: None
    )
    await hosts.look()
    await service.start()

    async def answer(_: Ask) -> Reply:
        return Reply("7", "stop", 0)

    try:
        with await service.bind("waits") as lease:
            spec, most = EpisodeSpec("train", 0, 0, 0), WORKERS * CORES * count

            async def round_of(number: int) -> float:
                began = perf_counter()
                outcomes = await asyncio.gather(*(service.play(lease, spec, answer) for _ in range(number)))
                if any(outcome.status != "ok" for outcome in outcomes):
                    raise RuntimeError(f"a score ended as {outcomes[0].status}: {outcomes[0].failure}")
                return perf_counter() - began

            await round_of(4 * most)
            await round_of(4 * most)
            workers = lease.serving.crew.scoring
            took = await round_of(EACH * workers)
            return Rate(EACH * workers / took, float(workers))
    finally:
        await service.stop()
        await hosts.stop()


async def _here(node: str) -> Launcher:
    return LocalLauncher()
