"""A step over a base of Qwen2.5-0.5B's shape, next to TRL: short prompts and answers, so the base outweighs all else.

Whole programs on all cores, one after the other, with default settings and with the synchronous algorithm.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from tools.random_base.make import make_base

from ..machinery.cores import all_cores
from ..report.figures import Row, Section
from . import marlaas_side, tables, trl_side
from .runs import THEIRS, Arm, Case, Results
from .trl_venv import TRL, ensure_trl
from .workload import Workload

KEEP = str(1 << 34)
KEEPING = {"MALLOC_TOP_PAD_": str(1 << 26), "MALLOC_MMAP_THRESHOLD_": KEEP, "MALLOC_TRIM_THRESHOLD_": KEEP}
"""For TRL's process: glibc then keeps what is freed. Else each pass fetches gigabytes of logits from the system again,
page by page, and a step takes twice as long."""
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
ARMS = {"default settings": Arm(), "staleness 0": Arm(staleness=0)}
"""What the placement chooses here; and the synchronous algorithm, which is TRL's."""
STEPS, THEIR_STEPS = 8, 3
"""All of them count: a step takes so long that the stages cannot be brought to an even flow first."""


def measure(quick: bool) -> Section:
    """Run every arm and TRL once; takes 12 minutes, or 5 when quick."""
    python = ensure_trl()
    steps, theirs = (1, 1) if quick else (STEPS, THEIR_STEPS)
    with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as folder:
        base = make_base(Path(folder) / "base", "qwen2.5", "0.5b")
        workload = replace(WORKLOAD, base=str(base.path))
        results = Results(Case(workload, all_cores(), steps, settled=0, repetitions=1, goal="4 ×", fewer=theirs))
        results.add(THEIRS, trl_side.run(python, workload, theirs, 0, all_cores(), environment=KEEPING))
        for name, arm in ARMS.items():
            results.add(name, marlaas_side.run(workload, steps, 0, all_cores(), arm, whole=True))
        print(f"    {results.newest()}", flush=True)
    their, other = results.steps(THEIRS), f"TRL {TRL}"
    rows = tuple(Row(f"a step: {arm}", "ms", results.steps(arm), their, other, goal="4 ×") for arm in results.ours)
    title = f"A step over a base of half a billion parameters, beside TRL {TRL}"
    return Section("half_billion_step", title, method(), rows, tables.remarks([results]))


def method() -> str:
    """What ran, with which settings."""
    one = WORKLOAD
    return (
        f"{one.groups} prompts × {one.group_size} completions and one optimizer step each; a random base made by"
        f" `tools.random_base`, of Qwen2.5-0.5B's shape; {tables.settings()}. Prompts have about 50 tokens, answers"
        f" {one.max_tokens}: a random base does not end its turns. Replies are paid by the share of vowels in them, so"
        " that every group has unequal rewards. A step is the time from the beginning of the training, when a side has"
        f" started, to the end of step {STEPS} ({THEIR_STEPS} of TRL, whose stages take turns), divided by the number"
        " of steps: nothing is in stock at the beginning or at the end, and ours counts the filling of its stages. With"
        " default settings the placement chooses how sampler and trainer keep the base. TRL computes in float32, in"
        f" passes of {one.at_once} episodes, with a C library that"
        " keeps freed memory. Whole programs, pinned to all cores, arms in turn.\n\n"
        "The bound with bfloat16 on both sides: on a processor with AMX a step takes the trainer 10.5 s of a core and"
        " the sampler 8.1 s, so that no step on two cores is shorter than 9.3 s. While one of them waits, the other has"
        " both cores. A second thread makes a pass of the trainer 1.9 times as fast, and decoding for 16 conversations"
        " 1.4 times, since reading the weights bounds it."
    )
