"""What a task learns next to 31 others, and alone: held-out scores of the same seeds, with TRL's if it can be had.

Four environments × eight seeds are 32 tasks. In one arm all of them run at once, in the other one after another; seed
*i* of an environment has the same prompts, noise and adapter to begin with in both. On sums TRL trains on the same
rows, and all are measured on the same held-out ones.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

from marlaas.engine.home.paths import Home
from marlaas.engine.spec.task import EvalSpec, SamplingSpec, TaskSpec, TrainSpec

from .. import ROOT
from ..beside_trl import trl_side, workload as fixed
from ..beside_trl.trl_venv import TRL, TrlUnavailable, ensure_trl
from ..beside_trl.workload import SHORT
from ..machinery.cores import all_cores
from ..machinery.fleet import FleetRun, fleet
from ..report.figures import Row, Section, Series
from .learned import difference, held_out, scores

EXAMPLE = ROOT / "examples" / "reverse_words.py"
SUMS = "sums"
ENVIRONMENTS = {
    SUMS: SamplingSpec(max_tokens=SHORT.max_tokens, max_episode_tokens=SHORT.max_tokens),
    "guess": SamplingSpec(max_tokens=8, max_episode_tokens=32),
    "calculator": SamplingSpec(max_tokens=80, max_episode_tokens=120),
    "reverse_words": SamplingSpec(max_tokens=8, max_episode_tokens=8),
}
"""How the policy writes in each: one turn on rows that TRL reads, too; several turns; tools; an example's one turn."""
ALONE = "one after another"
ONE_BY_ONE = "[engine]\ntasks = 1\n"
TRAIN = TrainSpec(learning_rate=fixed.LEARNING_RATE, clip_norm=fixed.CLIP_NORM)
GOAL = "0 inside, within ±3"


@dataclass(frozen=True)
class Size:
    """How much is run."""

    seeds: int
    steps: int
    every: int
    """Steps between evaluations."""
    prompts: int
    theirs: int
    """Seeds of TRL."""


FULL = Size(seeds=8, steps=20, every=10, prompts=256, theirs=8)
QUICK = Size(seeds=2, steps=6, every=6, prompts=64, theirs=2)


def measure(quick: bool) -> Section:
    """About 15 minutes; two when quick. TRL's own environment is made on first use, which is not timed."""
    size = QUICK if quick else FULL
    together, alone, synchronous = run(size), run(size, ONE_BY_ONE), run(size, ONE_BY_ONE, (SUMS,), staleness=0)
    theirs, missing = beside(size)
    table = tuple(rows(together, alone))
    if theirs:
        ours = {"at once": together, "alone, staleness 0": synchronous}
        table += tuple(against(theirs, {arm: ends(found, SUMS) for arm, found in ours.items()}))
    return Section("quality", "What 32 tasks learn at once", method(size), table, remarks(together, alone, missing))


def tasks(size: Size, environments: Sequence[str], staleness: int) -> list[TaskSpec]:
    """Every seed of every environment, environments in turn."""
    return [
        TaskSpec(
            name,
            f"{name}, seed {seed}",
            f"sums_{seed}/{SUMS}" if name == SUMS else name,
            steps=size.steps,
            train=replace(TRAIN, seed=seed, max_staleness=staleness),
            sampling=ENVIRONMENTS[name],
            eval=EvalSpec(every=size.every, prompts=size.prompts),
        )
        for seed in range(size.seeds)
        for name in environments
    ]


def run(
    size: Size,
    settings: str = "",
    environments: Sequence[str] = tuple(ENVIRONMENTS),
    staleness: int = TRAIN.max_staleness,
) -> FleetRun:
    """All tasks in one queue, as many at a time as the ``marlaas.toml`` says."""
    with fleet(settings=settings, prepare=partial(prepare, size)) as home:
        found = home.run(tasks(size, environments, staleness))
    print(f"  {len(found.tasks)} tasks: {found.makespan:.0f} s", flush=True)
    return found


def prepare(size: Size, home: Home) -> None:
    """Put the environments into a home: the example, and for each seed the sums of its own rows."""
    for seed in range(size.seeds):
        plugin = home.plugins / f"sums_{seed}"
        shutil.copytree(SHORT.plugin, plugin, ignore=shutil.ignore_patterns("__pycache__"))
        fixed.write_rows(SHORT, size.steps, seed, plugin, size.prompts)
    shutil.copy(EXAMPLE, home.plugins)


def beside(size: Size) -> tuple[list[float], str]:
    """TRL's scores on the held-out rows of each seed in percent; else none, and why not."""
    try:
        python = ensure_trl()
    except TrlUnavailable as missing:
        return [], str(missing)
    found = []
    for seed in range(size.theirs):
        one = trl_side.run(python, SHORT, size.steps, seed, all_cores(), held_out=size.prompts)
        found.append(100.0 * fmean(one.after))
        print(f"  TRL, seed {seed}: {found[-1]:.1f} %", flush=True)
    return found, ""


def ends(run: FleetRun, environment: str) -> tuple[float, ...]:
    """The score of each seed's last version."""
    return tuple(scores(task)[-1] for task in run.of_tenant(environment))


def rows(together: FleetRun, alone: FleetRun) -> Iterator[Row]:
    """Curves of both arms in each environment, differences there, and of all pairs."""
    names = dict.fromkeys(task.row.tenant for task in together.tasks)
    first, second = ({name: ends(arm, name) for name in names} for arm in (together, alone))
    ours, theirs = (Series((fmean(map(fmean, arm.values())),)) for arm in (first, second))
    yield Row("held-out score, mean of all tasks, at once", "%", ours, theirs, ALONE, higher_is_better=True)
    pooled = [[score for name in names for score in arm[name]] for arm in (first, second)]
    yield difference("all environments, at once − alone", pooled[0], pooled[1], GOAL)
    for name in names:
        yield difference(f"{name}, at once − alone", first[name], second[name])
        untrained = fmean(scores(task)[0] for task in together.of_tenant(name))
        yield Row(f"held-out score, untrained, {name}", "%", Series((untrained,)))
        for arm, run in (("at once", together), ("alone", alone)):
            yield from held_out(f"{name}, {arm}", run.of_tenant(name))


def against(theirs: Sequence[float], ours: Mapping[str, Sequence[float]]) -> Iterator[Row]:
    """Each arm of ours against TRL: the means of as many seeds as TRL ran, and the difference seed by seed."""
    mean = Series((fmean(theirs),))
    for arm, found in ours.items():
        own = tuple(found[: len(theirs)])
        what = f"held-out score, sums, {arm}"
        yield Row(what, "%", Series((fmean(own),)), mean, f"TRL {TRL}", higher_is_better=True)
        yield difference(f"sums, {arm} − TRL", own, theirs, "0 inside")


def method(size: Size) -> str:
    """What ran, with which settings."""
    return (
        f"{size.seeds} seeds of {len(ENVIRONMENTS)} environments are {size.seeds * len(ENVIRONMENTS)} tasks:"
        " sums of two four-digit numbers from rows, the bundled `guess` (several turns) and `calculator` (a tool),"
        f" and the example `reverse_words`. {size.steps} steps of {TRAIN.groups_per_step} groups of {TRAIN.group_size}"
        f" episodes on the shipped base, the shipped defaults (staleness {TRAIN.max_staleness}) otherwise. *At once*:"
        " all of them in one queue. *Alone*: one after another. Scores are those on"
        f" {size.prompts} held-out prompts, greedily. Seed *i* has the same prompts, noise and adapter to begin with in"
        " both arms; differences are taken seed by seed, and intervals are Student's, 95 %, of the mean over seeds."
        f" TRL {TRL} trains on the same rows of sums, each once, and is measured on the same held-out rows:"
        f" {size.theirs} seeds, synchronous, the same learning rate, betas, clip, rank, loss and denominator. Our own"
        " synchronous runs stand beside it, too."
    )


def remarks(together: FleetRun, alone: FleetRun, missing: str) -> str:
    """How long both took, and why there is no TRL where there is none."""
    return "\n\n".join(
        part
        for part in (
            f"All tasks took {together.makespan:.0f} s at once and {alone.makespan:.0f} s one after another. A task"
            " with `deterministic = true` has the same bits in both arms, which tests show; here none has.",
            f"TRL is not beside it: {missing}" if missing else "",
        )
        if part
    )
