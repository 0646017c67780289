"""Eight tenants train on one base: in turn, in shared passes, with few slots, by two trainers; beside PEFT for one.

The training worker runs as in production, in a process of its own, with the sampler off and both cores; state files are
flushed to the disk. Each tenant does what a learner does: its groups in one call, then a step.
"""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from time import perf_counter

import torch

from marlaas.engine.base.model import load_base
from marlaas.engine.training.group_pass import add_gradient
from marlaas.engine.training.inputs import TrainGroup
from marlaas.engine.training.memory.policy_memory import PolicyMemory, adamw, clip, fresh
from marlaas.engine.training.peft_model import PeftModel
from marlaas.engine.training.protocol import GroupStats, Job, Trainer
from marlaas.engine.training.torch_trainer import keep_freed_memory

from ..machinery.cores import all_cores, pinned
from ..report.figures import Row, Section, Series
from .cases import CASES, GROUPS, MEMBERS, Case
from .tenants_stage import CONFIG, TENANTS, Arm, moving_rows, policy, through_line, trainer

FEW_SLOTS, CORES = 3, 2
SHORT, LONG = CASES[0], CASES[2]
GOAL = "30,000"
UNLIMITED = 1 << 60


def measure(quick: bool) -> Section:
    """All arms in turn, again and again."""
    repetitions = 3 if quick else 15
    cores = all_cores()[:CORES]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as folder, pinned(cores):
        for case in (SHORT, LONG):
            rounds = repetitions if case is SHORT else max(1, repetitions // 3)
            rates = asyncio.run(_rates(case, Path(folder), cores, rounds))
            rows += _rows(case, rates)
        rows += asyncio.run(moving_rows(Path(folder), cores, repetitions))
    return Section(
        "tenants",
        "Eight tenants, one base: tokens trained a second",
        METHOD.format(repetitions=repetitions, cores=len(cores)),
        tuple(rows),
    )


METHOD = f"""The shipped base, LoRA of rank 16 on all linear layers, {GROUPS * MEMBERS} sequences in {GROUPS} groups a
step, {{cores}} cores, sampler off; a step ends with a state file that is flushed to the disk. *In turn* each tenant's
groups are one call and one pass; *fused* {TENANTS} tenants' groups share a pass. These two speak to the worker itself,
all others through the line before it, as tasks do: *line* hands over one call at a time, *where it gains* lets policies
share a pass where the line's own measurements say so. *{FEW_SLOTS} slots* has room for {FEW_SLOTS} of {TENANTS}
policies, the others paged to the disk. *Two trainers* have a core each, beside one trainer with both, and policies'
states may move between them. A *move* is a policy's whole training state, a gradient included, from one training worker
to another through the engine, with its checksum computed at both ends; the step after it is compared, byte for byte,
with that of a policy that stayed. *PEFT* is transformers and PEFT with autograd and AdamW for one tenant, all sequences
in one padded batch, on the same cores, without files. {{repetitions}} rounds of all arms in turn (a third as many of
the long case). *Trained tokens* are those of the sequences trained on, prompt and answer, each sequence counted in
full, as papers and other systems count them; *loss tokens* are those of the answers alone. A prompt that a group shares
is computed once by marlaas, and counted for each of its members on both sides."""


async def _rates(case: Case, folder: Path, cores: tuple[int, ...], repetitions: int) -> dict[str, Series]:
    """Trained tokens a second of each arm."""
    groups = tuple(case.draw(load_base("tiny").config.vocab_size))
    keep_freed_memory()
    torch.set_num_threads(len(cores))
    found: dict[str, list[float]] = {}
    async with AsyncExitStack() as stack:

        async def worker(name: str, own: tuple[int, ...] = cores, slots: int = 0) -> Trainer:
            return await stack.enter_async_context(trainer(name, folder, own, slots))

        roomy = await worker("roomy")
        for tenant in range(TENANTS):
            await roomy.open(policy(tenant), CONFIG, str(folder / f"{tenant}.safetensors"), False)
        line = partial(through_line, groups, folder)
        arms = {
            "one tenant": _in_turn(roomy, groups, folder, 1),
            "in turn": _in_turn(roomy, groups, folder, TENANTS),
            "fused": _fused(roomy, groups, folder),
            "line": await line([await worker("line")]),
            "line, fusing": await line([await worker("fusing")], fuse=True),
            "few slots": await line([await worker("few", slots=FEW_SLOTS)]),
            "two trainers": await line([await worker(f"core-{core}", (core,)) for core in cores]),
            "PEFT": _plain(groups),
        }
        for repetition in range(repetitions + 1):
            for name, arm in arms.items():
                started = perf_counter()
                steps = await arm()
                rate = steps * GROUPS * MEMBERS * (case.prompt + case.answer) / (perf_counter() - started)
                if repetition:  # the first warms up
                    found.setdefault(name, []).append(rate)
    return {name: Series(tuple(rates)) for name, rates in found.items()}


def _in_turn(trainer: Trainer, groups: tuple[TrainGroup, ...], folder: Path, tenants: int) -> Arm:
    async def step(tenant: int) -> None:
        await trainer.accumulate(policy(tenant), groups)
        await trainer.step(policy(tenant), str(folder / f"{tenant}.safetensors"))

    async def run() -> int:
        await asyncio.gather(*(step(tenant) for tenant in range(tenants)))
        return tenants

    return run


def _fused(trainer: Trainer, groups: tuple[TrainGroup, ...], folder: Path) -> Arm:
    jobs = tuple(Job(policy(tenant), groups) for tenant in range(TENANTS))

    async def run() -> int:
        done = await trainer.accumulate_together(jobs)
        if not all(isinstance(stats, GroupStats) for stats in done):
            raise RuntimeError(f"a job was refused: {done}")
        paths = (str(folder / f"{tenant}.safetensors") for tenant in range(TENANTS))
        await asyncio.gather(*(trainer.step(job.policy, path) for job, path in zip(jobs, paths, strict=True)))
        return TENANTS

    return run


def _plain(groups: tuple[TrainGroup, ...]) -> Arm:
    """Autograd and AdamW over one policy."""
    model = PeftModel(str(load_base("tiny").path), room=UNLIMITED)
    layout = model.layout(CONFIG.rank)
    memory = PolicyMemory.of(CONFIG, layout, fresh(CONFIG, layout))
    batch = [TrainGroup(0, tuple(sequence for group in groups for sequence in group.sequences))]

    async def run() -> int:
        add_gradient(model, memory, batch)
        gradient, _ = clip(memory.gradient / CONFIG.denominator, CONFIG.clip_norm)
        memory.adopt(adamw(memory.optimised, gradient, CONFIG.learning_rate, CONFIG.betas, CONFIG.weight_decay))
        return 1

    return run


def _rows(case: Case, rates: dict[str, Series]) -> list[Row]:
    answers = case.answer / (case.prompt + case.answer)
    fused = rates["fused"]
    loss = Series(tuple(answers * rate for rate in fused.values))

    def row(what: str, arm: str, other: str, name: str, goal: str = "") -> Row:
        return Row(f"{case.title}: {what}", "trained tokens/s", rates[arm], rates[other], name, True, goal)

    few = f"8 tenants by the line, {FEW_SLOTS} slots"
    return [
        row("8 tenants in turn", "in turn", "PEFT", "PEFT, one tenant", GOAL),
        row("8 tenants fused", "fused", "PEFT", "PEFT, one tenant", GOAL),
        row("8 tenants fused", "fused", "in turn", "in turn"),
        row("8 tenants in turn", "in turn", "one tenant", "one tenant"),
        row("8 tenants by the line, fused where it gains", "line, fusing", "line", "never fused"),
        row(few, "few slots", "line", "all in memory", "0.95 ×"),
        row("8 tenants, two trainers of one core", "two trainers", "line", "one trainer with both cores"),
        Row(f"{case.title}: 8 tenants fused", "loss tokens/s", loss, higher_is_better=True),
    ]
