"""A step at a vocabulary of 151,936 entries, beside TRL: where logits outweigh everything else.

A random base of 4 layers of width 256, prompts of about 256 tokens and answers of 200 flow into both sides, as whole
programs, one after the other; seconds a step flow out.
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

WORKLOAD = Workload(
    "vocabulary 151,936",
    preamble=212,
    max_tokens=200,
    wordy=True,
    environment="letters",
    groups=2,
    group_size=8,
    at_once=8,
)
ARMS = {
    "llama.cpp, q8_0": Arm(sampler="llama.cpp", weights="q8_0"),
    "llama.cpp, f32": Arm(sampler="llama.cpp", weights="f32"),
    "llama.cpp, f32, staleness 0": Arm(staleness=0, sampler="llama.cpp", weights="f32"),
    "torch sampler": Arm(sampler="torch"),
}
"""What the default settings come to for this base; float32 throughout; the synchronous algorithm; the other sampler."""
KEEP = str(1 << 34)
KEEPING = {"MALLOC_TOP_PAD_": str(1 << 26), "MALLOC_MMAP_THRESHOLD_": KEEP, "MALLOC_TRIM_THRESHOLD_": KEEP}
"""For TRL's process: glibc then keeps what is freed. Else each pass fetches gigabytes of logits from the system anew,
page by page, and a step takes twice as long."""
STEPS, SETTLED, REPETITIONS = 5, 2, 2
GOAL = "3 ×"


def measure(quick: bool) -> Section:
    """Run every arm; takes about 15 minutes, or 4 when quick."""
    python = ensure_trl()
    with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as name:
        base = make_base(Path(name) / "base", "qwen2.5", "bench")
        workload = replace(WORKLOAD, base=str(base.path))
        steps, settled, repetitions = (3, 1, 1) if quick else (STEPS, SETTLED, REPETITIONS)
        results = Results(Case(workload, all_cores(), steps, settled, repetitions, GOAL))
        for seed in range(repetitions):
            results.add(THEIRS, trl_side.run(python, workload, steps, seed, all_cores(), environment=KEEPING))
            for arm, settings in ARMS.items():
                results.add(arm, marlaas_side.run(workload, steps, seed, all_cores(), settings))
            print(f"    {results.newest()}", flush=True)
    return Section(
        name="large_vocabulary",
        title=f"A vocabulary of 151,936, beside TRL {TRL}",
        method=method(),
        rows=rows(results),
        remarks=tables.remarks([results], {}),
    )


def rows(results: Results) -> tuple[Row, ...]:
    """A step of every arm."""
    theirs = results.steps(THEIRS)
    return tuple(
        Row(f"a step: {arm}", "ms", results.steps(arm), theirs, f"TRL {TRL}", goal=results.case.goal)
        for arm in results.ours
    )


def method() -> str:
    """What ran, with which settings."""
    one = WORKLOAD
    return (
        f"{one.groups} prompts × {one.group_size} completions and one optimizer step each; a random base made by"
        " `tools.random_base`: Qwen2.5's layout, 4 layers of width 256, 151,936 tied embeddings, float32 in the trainer"
        f" on both sides; {tables.settings()}. Prompts have about 256 tokens, a different preamble of common"
        f" words for each group, answers {one.max_tokens}: a random base does not end its turns. Replies are paid by"
        " the share of vowels in them, so that every group has unequal rewards. `q8_0` is what the default, `auto`,"
        " takes for a base of this size.\n\n"
        f"TRL holds the logits of a whole pass: it gets passes of {one.at_once} episodes (2 or 4 are no faster), and a"
        " C library that keeps freed memory, without which its steps take twice as long. Else as in the comparison on"
        " the shipped base: whole programs, pinned to all cores, arms in turn."
    )
