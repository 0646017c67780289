"""One task against TRL's ``GRPOTrainer``: same base, prompts, rewards, group and batch; steps, waiting time, rewards.

Both sides are whole programs, started again for every run. Repetition *i* of every arm trains on the same prompts, one
arm after the other, so that a pair saw the same machine.
"""

from __future__ import annotations

from pathlib import Path

from ..machinery.cores import all_cores
from ..report.figures import Section
from . import marlaas_side, tables, trl_side
from .runs import OURS, THEIRS, Case, Results
from .trl_venv import TRL, ensure_trl
from .workload import LONG, SHORT


def measure(quick: bool) -> Section:
    """Run every case; takes about 12 minutes, or 1 when quick."""
    python = ensure_trl()
    results = [run(python, case) for case in cases(quick)]
    return Section(
        name="one_task",
        title=f"One task, beside TRL {TRL}",
        method=tables.method(),
        rows=tables.rows(results, f"TRL {TRL}"),
        remarks=tables.remarks(results),
    )


def cases(quick: bool) -> list[Case]:
    """What is run, on the cores that there are: on one of them and on all."""
    cores = all_cores()
    short, long = "3 ×, aim at 5 ×", "5 ×"
    if quick:
        return [Case(SHORT, cores, 14, 4, 1, short), Case(LONG, cores, 5, 2, 1, long)]
    found = [Case(SHORT, cores, 40, 10, 5, short), Case(LONG, cores, 8, 3, 3, long)]
    if len(cores) > 1:
        one = cores[-1:]
        found += [Case(SHORT, one, 30, 10, 3, short), Case(LONG, one, 7, 3, 3, long)]
    return found


def run(python: Path, case: Case) -> Results:
    """All arms in turn, as often as the case says."""
    print(f"  {case.where}: {case.repetitions} × {case.steps} steps of each arm", flush=True)
    results = Results(case)
    for seed in range(case.repetitions):
        results.add(THEIRS, trl_side.run(python, case.workload, case.steps, seed, case.cores))
        for name, arm in OURS.items():
            results.add(name, marlaas_side.run(case.workload, case.steps, seed, case.cores, arm))
        print(f"    {results.newest()}", flush=True)
    return results
