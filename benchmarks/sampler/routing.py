"""Tasks routed to the sampler that suits their mix of tokens, beside the same tasks spread evenly, or the wrong way.

llama.cpp and torch stand for two kinds of hardware, a core each: one writes with few conversations at a time, the other
reads long prompts, at a half to a third of the other's time. First the samplers alone, without environments and a
trainer; then whole tasks (``affinity``), where turns are also balanced over samplers that are alike.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from marlaas.engine.devices.machine import SamplerKind
from marlaas.engine.fleet.routing.assignment import Share
from marlaas.engine.fleet.routing.router import Router
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import RolloutSettings, Settings
from marlaas.engine.spec.agents import ONLY
from marlaas.engine.spec.task import SamplingSpec, TaskSpec, TrainSpec

from ..machinery.cores import all_cores
from ..report.figures import Row, Section, Series
from . import affinity
from .files import Files
from .routing_stage import Routing, Stage, Work

LLAMA, TORCH = "rollout-1", "rollout-2"
BOTH: tuple[SamplerKind, SamplerKind] = ("llama.cpp", "torch")
KINDS: Mapping[str, tuple[SamplerKind, SamplerKind]] = {
    "both kinds": BOTH,
    "torch on both cores": ("torch", "torch"),
    "llama.cpp on both cores": ("llama.cpp", "llama.cpp"),
}
ROUTED, EVEN, WRONG = "by their mix", "evenly over both kinds", "the wrong way round"
READS, WRITES = (400, 8), (12, 192)
"""Tokens of a prompt and of a reply."""
READERS = WRITERS = 2
LIMITS = SamplingSpec(max_tokens=32, max_episode_tokens=256)
"""Tasks of either kind."""
METHOD = """\
**Samplers alone.** The shipped base (1.28 M parameters), LoRA of rank 16 on all linear layers, two samplers, each a
worker process with one core and one thread: llama.cpp (float32, `exact`) and torch. {readers} tasks read: groups of 4
to prompts of {reads[0]} tokens, replies of {reads[1]}, 4 groups at a time, {read_steps} times. {writers} write: one
group of 4 at a time, prompts of {writes[0]}, replies of {writes[1]}, {write_steps} times. Shapes and amounts were
chosen after measuring what each sampler is better at, so that either has about as much to do: with tasks that are all
alike, or far more of one kind, there is less to gain, and nothing where one sampler is better at everything. A figure
is the time until all have ended. {repetitions} repetitions after one that is not counted, in which routing learns; arms
take turns.

- **by their mix**: the engine's own router, which knows of samplers and tasks what it has measured while they worked.
- **evenly over both kinds**: half of every task's groups at each. **the wrong way round**: readers at llama.cpp,
  writers at torch. **on both cores**: two samplers of one kind, half of every task's groups at each.
"""


def measure(quick: bool) -> Section:
    """Takes about ten minutes, or two when quick."""
    alone = asyncio.run(_measure(2 if quick else 7, 1 if quick else 3))
    repetitions, steps, single = (1, 4, 3) if quick else (4, 8, 6)
    measured = asyncio.run(affinity.measure(steps, single, repetitions))
    words = {
        "readers": affinity.READERS,
        "writers": affinity.WRITERS,
        "steps": steps,
        "repetitions": repetitions,
        "sequences": affinity.SEQUENCES,
        "chained": affinity.CHAINED,
        "few": affinity.FEW,
    }
    return replace(
        alone,
        method=alone.method + "\n" + affinity.METHOD.format(alone=f"{single} steps", **words),
        rows=alone.rows + affinity.rows(measured),
        remarks=alone.remarks + "\n" + affinity.remarks(measured),
    )


async def _measure(repetitions: int, amount: int) -> Section:
    read_steps, write_steps = 4 * amount, 3 * amount
    works = [_work("reads", *READS, groups=4, steps=read_steps)] * READERS
    works += [_work("writes", *WRITES, groups=1, steps=write_steps)] * WRITERS
    with tempfile.TemporaryDirectory() as folder:
        files = Files(Path(folder))
        home = Home(Path(folder) / "home").create()
        settings = Settings(rollout=RolloutSettings(sequences=64, context=512, weights="f32"))
        stages = {
            name: await Stage.start(files.base, home, settings, kinds, all_cores()[:2]) for name, kinds in KINDS.items()
        }
        try:
            for stage in stages.values():
                for task in range(len(works)):
                    await stage.load(f"v{task}", str(files.state(task)))
            both = stages["both kinds"]
            router = _router(both, works)
            arms: dict[str, tuple[Stage, Routing]] = {ROUTED: (both, lambda task: router.shares(task, ONLY))}
            arms |= {EVEN: (both, _even), WRONG: (both, _wrong)}
            arms |= {name: (stages[name], _even) for name in KINDS if name != "both kinds"}
            times: dict[str, list[float]] = {name: [] for name in arms}
            for _ in range(repetitions + 1):
                for name, (stage, routing) in arms.items():
                    times[name].append(await stage.run(works, routing))
            remarks = _remarks(router, both)
        finally:
            await asyncio.gather(*(stage.close() for stage in stages.values()))
    ours = Series(tuple(times.pop(ROUTED)[1:]))
    rows = tuple(
        Row(f"all tasks, routed {ROUTED}", "s", ours, Series(tuple(theirs[1:])), name) for name, theirs in times.items()
    )
    words = {"readers": READERS, "writers": WRITERS, "reads": READS, "writes": WRITES, "repetitions": repetitions}
    method = METHOD.format(read_steps=read_steps, write_steps=write_steps, **words)
    return Section("routing", "Tasks routed to samplers by their mix of tokens", method, rows, remarks)


def _work(name: str, prompt: int, reply: int, groups: int, steps: int) -> Work:
    train = TrainSpec(groups_per_step=groups, group_size=4, max_staleness=0)
    spec = TaskSpec(tenant="bench", name=name, environment="none", train=train, sampling=LIMITS)
    return Work(spec, prompt, reply, steps)


def _router(stage: Stage, works: list[Work]) -> Router:
    router = Router(tuple(stage.endpoints.by_name.values()), stage.endpoints.costs, stage.ledger.mixes)
    for task, work in enumerate(works):
        router.join(task, work.spec)
    return router


def _even(task: int) -> list[Share]:
    return [Share(LLAMA, 0.5), Share(TORCH, 0.5)]


def _wrong(task: int) -> list[Share]:
    return [Share(LLAMA if task < READERS else TORCH, 1.0)]


def _remarks(router: Router, stage: Stage) -> str:
    """Where the tasks went in the end, and by what."""
    names = dict(zip((LLAMA, TORCH), BOTH, strict=True))
    tasks = [("reads", task) for task in range(READERS)] + [("writes", READERS + task) for task in range(WRITERS)]
    went = "; ".join(
        f"one that {what}: "
        + ", ".join(f"{share.part:.0%} {names[share.sampler]}" for share in router.shares(task, ONLY))
        for what, task in tasks
    )
    costs = "; ".join(
        f"{names[cost.name]} {cost.prefilled * 1e6:.0f} µs a token read, {cost.sampled * 1e6:.0f} µs a token written"
        for cost in stage.endpoints.costs()
    )
    return f"In the end the router had the tasks here: {went}. It had measured: {costs}.\n"
