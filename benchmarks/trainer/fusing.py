"""One, eight and 32 adapters on a base of half a billion parameters: time a pass takes for each, in turn and fused.

The training worker runs as in production, with the sampler off. No other side: that is the same worker, called once for
each adapter.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from time import perf_counter

from marlaas.engine.base.model import BaseModel
from marlaas.engine.fleet.worker_specs import TRAINER, WorkerSpec
from marlaas.engine.training.inputs import PolicyConfig
from marlaas.engine.training.protocol import GroupStats, Job, Trainer
from tools.random_base.make import make_base

from ..machinery.cores import all_cores, pinned
from ..report.figures import Row, Section, Series
from .cases import MEMBERS, Case

CONFIG = PolicyConfig(rank=16, alpha=32.0, denominator=64.0)
SHORT = Case("one group of 8, a prompt of 16 tokens, answers of 2", "", 16, 2, groups=1)
LONG = Case("one group of 8, a prompt of 64 tokens, answers of 24", "", 64, 24, groups=1)


def measure(quick: bool) -> Section:
    """Short groups under 1, 8 and 32 adapters, then long ones; two adapters fewer when quick."""
    repetitions = 2 if quick else 4
    cores, rows = all_cores(), list[Row]()
    with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as name, pinned(cores):
        base = make_base(Path(name) / "base", "qwen2.5", "0.5b")
        counts = {SHORT: (1, 8), LONG: ()} if quick else {SHORT: (1, 8, 32), LONG: (1, 8)}
        for case, adapters in counts.items():
            for count in adapters:
                rows += asyncio.run(_compare(base, Path(name), case, count, repetitions))
    return Section("fusing", "Adapters trained in one pass on a base of half a billion parameters", METHOD, tuple(rows))


METHOD = f"""A random base made by `tools.random_base` in the shape of Qwen2.5-0.5B, LoRA of rank {CONFIG.rank} on all
linear layers, a training worker on all cores, sampler off. Each adapter has a group of its own, of {MEMBERS} members
that share their prompt; *fused* is one call with a job for each adapter, *in turn* a call for each. Seconds of forward
and backward passes are divided by the number of adapters. Both sides in turn, after one round that is not counted."""


async def _compare(base: BaseModel, folder: Path, case: Case, count: int, repetitions: int) -> list[Row]:
    kwargs = {"base": str(base.path), "fingerprint": base.fingerprint, "threads": len(all_cores()), "sync": False}
    worker = await WorkerSpec("training", TRAINER, kwargs | {"scratch": str(folder)}, all_cores()).spawn(folder)
    names = [f"adapter-{number}" for number in range(count)]
    groups = tuple(case.draw(base.config.vocab_size))
    fused: list[float] = []
    in_turn: list[float] = []
    try:
        trainer: Trainer = worker.proxy(Trainer)
        for name in names:
            await trainer.open(name, CONFIG, str(folder / "state.safetensors"), False)
        for repetition in range(repetitions + 1):
            begun = perf_counter()
            for name in names:
                await trainer.accumulate(name, groups)
            middle = perf_counter()
            done = await trainer.accumulate_together(tuple(Job(name, groups) for name in names))
            end = perf_counter()
            if not all(isinstance(stats, GroupStats) for stats in done):
                raise RuntimeError(f"a job was refused: {done}")
            if repetition:  # the first warms up
                in_turn.append((middle - begun) / count)
                fused.append((end - middle) / count)
    finally:
        await worker.stop()
    adapters = "1 adapter" if count == 1 else f"{count} adapters"
    ours, theirs = Series(tuple(fused)), Series(tuple(in_turn))
    return [Row(f"{case.title}: {adapters}, a pass for each", "s", ours, theirs, "in turn")]
