"""Arms of ours and TRL over a random base made for it: a case flows in, a section with a step of each arm flows out."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tools.random_base.make import make_base

from ..report.figures import Row, Section
from . import marlaas_side, tables, trl_side
from .runs import THEIRS, Arm, Case, Results
from .trl_venv import TRL, ensure_trl

KEEP = str(1 << 34)
KEEPING = {"MALLOC_TOP_PAD_": str(1 << 26), "MALLOC_MMAP_THRESHOLD_": KEEP, "MALLOC_TRIM_THRESHOLD_": KEEP}
"""For TRL's process: glibc then keeps what is freed. Else each pass fetches gigabytes of logits from the system anew,
page by page, and a step takes twice as long."""


def beside(name: str, title: str, method: str, shape: str, arms: Mapping[str, Arm], case: Case) -> Section:
    """Run every arm and TRL in turn over a base of Qwen2.5's layout and that ``shape``, whole programs on all cores."""
    python = ensure_trl()
    with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as folder:
        base = make_base(Path(folder) / "base", "qwen2.5", shape)
        workload = replace(case.workload, base=str(base.path))
        results, whole = Results(replace(case, workload=workload)), not case.settled
        for seed in range(case.repetitions):
            theirs = trl_side.run(python, workload, case.made_by(THEIRS), seed, case.cores, environment=KEEPING)
            results.add(THEIRS, theirs)
            for arm, settings in arms.items():
                results.add(arm, marlaas_side.run(workload, case.steps, seed, case.cores, settings, whole))
            print(f"    {results.newest()}", flush=True)
    return Section(name=name, title=title, method=method, rows=rows(results), remarks=tables.remarks([results], {}))


def rows(results: Results) -> tuple[Row, ...]:
    """A step of every arm."""
    theirs = results.steps(THEIRS)
    return tuple(
        Row(f"a step: {arm}", "ms", results.steps(arm), theirs, f"TRL {TRL}", goal=results.case.goal)
        for arm in results.ours
    )
