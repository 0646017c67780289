"""A step over a base of Qwen2.5-0.5B's shape, beside TRL: short prompts and answers, where the base outweighs all else.

Whole programs on all cores, one after the other, with default settings and with those that they replace; seconds a
step flow out.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from tools.random_base.make import make_base

from ..machinery.cores import all_cores
from ..report.figures import Section
from . import marlaas_side, tables, trl_side
from .large_vocabulary import KEEPING, rows
from .runs import THEIRS, Arm, Case, Results
from .trl_venv import TRL, ensure_trl
from .workload import Workload

WORKLOAD = Workload(
    "a base of 0.5 B",
    preamble=30,
    max_tokens=60,
    wordy=True,
    environment="letters",
    groups=2,
    group_size=8,
    at_once=8,
)
ARMS = {
    "default settings": Arm(),
    "staleness 0": Arm(staleness=0),
    "sampled in q8_0": Arm(sampler="llama.cpp", weights="q8_0"),
    "sampled in bf16": Arm(sampler="torch", weights="bf16"),
}
"""What the placement chooses here; the synchronous algorithm; and each of the samplers that it chooses between."""
STEPS, SETTLED, REPETITIONS = 4, 1, 2
GOAL = "4 ×"


def measure(quick: bool) -> Section:
    """Run every arm; takes about an hour, or 15 minutes when quick."""
    python = ensure_trl()
    with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as name:
        base = make_base(Path(name) / "base", "qwen2.5", "0.5b")
        workload = replace(WORKLOAD, base=str(base.path))
        steps, settled, repetitions = (2, 1, 1) if quick else (STEPS, SETTLED, REPETITIONS)
        results = Results(Case(workload, all_cores(), steps, settled, repetitions, GOAL))
        for seed in range(repetitions):
            results.add(THEIRS, trl_side.run(python, workload, steps, seed, all_cores(), environment=KEEPING))
            for arm, settings in ARMS.items():
                results.add(arm, marlaas_side.run(workload, steps, seed, all_cores(), settings))
            print(f"    {results.newest()}", flush=True)
    return Section(
        name="half_billion_step",
        title=f"A step over a base of half a billion parameters, beside TRL {TRL}",
        method=method(),
        rows=rows(results),
        remarks=tables.remarks([results], {}),
    )


def method() -> str:
    """What ran, with which settings."""
    one = WORKLOAD
    return (
        f"{one.groups} prompts × {one.group_size} completions and one optimizer step each; a random base made by"
        f" `tools.random_base`, of Qwen2.5-0.5B's shape; {tables.settings()}. Prompts have about 50 tokens, answers"
        f" {one.max_tokens}: a random base does not end its turns. Replies are paid by the share of vowels in them, so"
        " that every group has unequal rewards. With default settings the placement chooses how sampler and trainer"
        f" keep the base. TRL computes in float32, in passes of {one.at_once} episodes, with a C library that keeps"
        " freed memory. Whole programs, pinned to all cores, arms in turn."
    )
