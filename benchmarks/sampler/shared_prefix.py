"""Groups whose prompts begin with one system prompt of 2,000 tokens, beside groups with a system prompt each.

Everything is measured in a child process that has one core and one thread; the arms take turns.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np

from marlaas.engine.base.model import BaseModel, load_base
from marlaas.engine.rollout.batching.sampler import BatchingSampler
from marlaas.engine.rollout.protocol import SampleRequest

from ..machinery.cores import all_cores
from ..report.figures import Row, Section, Series
from .cases import ALPHA, RANK
from .throughput import _pin

SYSTEM, QUESTION, REPLY = 2000, 50, 24
"""Tokens of the system prompt, of what follows it, and of an answer."""
GROUPS, MEMBERS, LENGTH = 8, 4, 2304
SAMPLERS = ("llama.cpp", "torch")
METHOD = """\
The shipped base (1.28 M parameters), its context set to {context} tokens, LoRA of rank {rank} (alpha {alpha}), one
core, one thread, one version. A step is {groups} groups of {members}; each group has a question of its own ({question}
tokens) after a system prompt of {system} tokens; answers have {reply} tokens, at temperature 1. **ours**: all groups
have the same system prompt, another one in each repetition. **a system prompt each**: every group has another one, of
the same length, so that its members share it and nobody else does. A figure is the processor time of the sampler's
process. *At once*: all groups are asked together; *in turn*: each when the one before has been forgotten.
*Deterministic* turns have the same last bits whatever else is asked. {repetitions} repetitions after one that is not
counted; the arms take turns within each. llama.cpp is *exact* (float32), as by default.
"""
REMARKS = """\
With a system prompt of their own {groups} groups read {each} tokens; with one they read {shared}, and deterministic
ones {alike}, because these share whole pieces of 256 tokens. What is left is the questions, the answers over memories
of {length} tokens, and copies of {system} tokens of keys and values to each conversation.
"""


@dataclass(frozen=True)
class Arm:
    """One way to ask a step."""

    sampler: str
    shared: bool
    alike: bool
    at_once: bool


WAYS = ((False, True), (False, False), (True, True))
"""Whether turns are deterministic, and groups are asked at once."""
ARMS = tuple(Arm(sampler, shared, *way) for sampler in SAMPLERS for way in WAYS for shared in (True, False))
Found = dict[Arm, tuple[tuple[float, ...], int]]
"""Seconds of each repetition, and the tokens that one reads."""


def measure(quick: bool) -> Section:
    """Takes about four minutes, or one when quick."""
    repetitions = 2 if quick else 6
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _pin, (max(all_cores()),)) as process:
        found = process.submit(_found, repetitions).result()
    rows = []
    for arm in (arm for arm in ARMS if arm.shared):
        other = replace(arm, shared=False)
        how = "at once" if arm.at_once else "in turn"
        what = f"a step of {GROUPS} groups {how}{', deterministic' if arm.alike else ''}, {arm.sampler}"
        rows.append(Row(what, "s", Series(found[arm][0]), Series(found[other][0]), "a system prompt each"))
    counts = {"groups": GROUPS, "members": MEMBERS, "system": f"{SYSTEM:,}", "question": QUESTION, "reply": REPLY}
    method = METHOD.format(context=f"{LENGTH:,}", rank=RANK, alpha=ALPHA, repetitions=repetitions, **counts)
    each, shared, alike = (
        f"{found[Arm('torch', *which, True)][1]:,}" for which in ((False, False), (True, False), (True, True))
    )
    remarks = REMARKS.format(**counts, each=each, shared=shared, alike=alike, length=f"{SYSTEM + QUESTION:,}")
    return Section("shared_prefix", "A system prompt that groups share", method, tuple(rows), remarks)


def _found(repetitions: int) -> Found:
    """The child's work."""
    from marlaas.engine.rollout.llama.model import LlamaSampler
    from marlaas.engine.rollout.torch_sampler.sampler import TorchSampler

    from .files import Files

    times: dict[Arm, list[float]] = defaultdict(list)
    read: dict[Arm, int] = {}
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        files = Files(Path(folder))
        files.base = _longer(files.base, Path(folder) / "base")
        base, sequences = str(files.base.path), GROUPS * MEMBERS
        makers: dict[str, Callable[[], BatchingSampler]] = {
            "llama.cpp": lambda: LlamaSampler(base, folder, sequences, LENGTH, exact=True),
            "torch": lambda: TorchSampler(base, sequences, LENGTH),
        }
        samplers = {name: make() for name, make in makers.items()}
        for sampler in samplers.values():
            runner.run(sampler.load("v0", str(files.state(0))))
        for repetition in range(repetitions + 1):
            for arm in ARMS:
                seconds, read[arm] = runner.run(_step(samplers[arm.sampler], arm, repetition))
                times[arm].append(seconds)
        for sampler in samplers.values():
            runner.run(sampler.close())
    return {arm: (tuple(times[arm][1:]), read[arm]) for arm in ARMS}


def _longer(base: BaseModel, folder: Path) -> BaseModel:
    """The same weights with more room: what it says after its first thousand tokens takes as long as anything else."""
    shutil.copytree(base.path, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": LENGTH}))
    return load_base(folder)


async def _step(sampler: BatchingSampler, arm: Arm, repetition: int) -> tuple[float, int]:
    """Processor seconds of a step, and the tokens that it reads."""
    random = np.random.default_rng((repetition, ARMS.index(arm)))
    systems = random.integers(3, 288, (1 if arm.shared else GROUPS, SYSTEM), dtype=np.int32)
    groups = [
        [
            SampleRequest(
                conversation=f"{group} {member}",
                version="v0",
                tokens=np.concatenate([systems[group % len(systems)], question]),
                max_tokens=REPLY,
                temperature=1.0,
                stop=(),
                seed=MEMBERS * group + member,
                alike=arm.alike,
            )
            for member in range(MEMBERS)
        ]
        for group, question in enumerate(random.integers(3, 288, (GROUPS, QUESTION), dtype=np.int32))
    ]
    before, began = (await sampler.stats()).prefilled_tokens, time.process_time()
    for asked in [[*chain(*groups)]] if arm.at_once else groups:
        await asyncio.gather(*(_one(sampler, request) for request in asked))
    seconds = time.process_time() - began
    return seconds, (await sampler.stats()).prefilled_tokens - before


async def _one(sampler: BatchingSampler, request: SampleRequest) -> None:
    await sampler.generate(request)
    await sampler.release(request.conversation)
