"""What a smaller copy of the base costs: the same runs with the sampler's weights in f32, f16, q8_0 and q4_k_m.

On a trained base the score is that on held-out prompts; on random weights in the shape of Qwen2.5-0.5B it is what the
policy is paid in training, which is all that such a base can learn. All runs are synchronous, so that step *n* was
sampled by version *n* − 1 and trainer and sampler differ by precision alone.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

from marlaas.engine.base import BaseModel
from marlaas.engine.home.paths import Home
from marlaas.engine.rollout.llama.model import ensure_base_gguf
from marlaas.engine.spec.task import EvalSpec, SamplingSpec, TaskSpec, TrainSpec
from tools.random_base.make import make_base

from ..beside_trl.workload import Workload
from ..machinery.cores import all_cores
from ..machinery.fleet import TaskRun, fleet
from ..report.figures import Row, Section, Series
from .learned import Scores, difference, held_out, rewarded, rewards, scores
from .rows import install
from .staleness import interval
from .wide_base import make_wide


@dataclass(frozen=True)
class Arm:
    """How the sampler keeps the base, and what becomes of importance weights."""

    name: str
    weights: str
    importance: str = "truncate"


EXACT = Arm("f32", "f32")
ARMS = (EXACT, Arm("f16", "f16"), Arm("q8_0", "q8_0"), Arm("q4_k_m", "q4_k_m"))
UNWEIGHTED = Arm("q4_k_m, importance weights off", "q4_k_m", "none")
"""The ablation, on the trained base."""
SETTINGS = """\
base = {base}
[engine]
tasks = 1
[rollout]
sampler = "llama.cpp"
weights = "{weights}"
context = 256
sequences = {sequences}
"""
LETTERS = Workload("letters", 0, 16, environment="letters", groups=2)


@dataclass(frozen=True)
class Case:
    """One base, and what is trained on it."""

    name: str
    sequences: int
    seeds: int
    steps: int
    every: int
    prompts: int
    letters: bool = False

    def task(self, seed: int, arm: Arm) -> TaskSpec:
        """One run."""
        own = LETTERS if self.letters else Workload("sums", 0, 8)
        return TaskSpec(
            arm.name,
            f"{arm.name}, seed {seed}",
            LETTERS.environment if self.letters else "arithmetic",
            steps=self.steps,
            train=TrainSpec(
                learning_rate=1e-4 if self.letters else 5e-4,
                groups_per_step=own.groups,
                group_size=own.group_size,
                max_staleness=0,
                importance=arm.importance,
                seed=seed,
            ),
            sampling=SamplingSpec(max_tokens=own.max_tokens, max_episode_tokens=own.max_tokens),
            eval=EvalSpec(every=self.every, prompts=self.prompts),
        )

    def scores(self, run: TaskRun) -> Scores:
        """By which the arms are compared."""
        return rewards(run) if self.letters else scores(run)


TRAINED = Case("trained base", 64, seeds=5, steps=30, every=10, prompts=256)
HALF = Case("0.5 B shape", 16, seeds=5, steps=4, every=0, prompts=1, letters=True)
QUICK = (
    Case("trained base", 64, seeds=2, steps=4, every=2, prompts=64),
    Case("0.5 B shape", 16, seeds=2, steps=2, every=0, prompts=1, letters=True),
)
Found = Mapping[Arm, Sequence[TaskRun]]
"""The runs of each arm, in order of seeds."""


def measure(quick: bool) -> Section:
    """About 15 minutes; three when quick, with f32 and q4_k_m alone on the shape of 0.5 B."""
    trained, half = QUICK if quick else (TRAINED, HALF)
    with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as name:
        wide = make_wide(Path(name) / "wide")
        first = interleaved(trained, wide, (*ARMS, UNWEIGHTED))
        large = make_base(Path(name) / "half", "qwen2.5", "0.5b")
        second = in_turn(half, large, (EXACT, ARMS[-1]) if quick else ARMS)
    table = (*rows(trained, first), *rows(half, second))
    return Section("quantised", "Rollouts by a quantised base", method(trained, half), table, remarks(first, second))


def interleaved(case: Case, base: BaseModel, arms: Sequence[Arm]) -> Found:
    """An engine for each precision, all of them up; seed by seed each arm has its turn, so that a pair sees the same
    machine."""
    ready = partial(prepare, case, written(base, arms))
    found: dict[Arm, list[TaskRun]] = {arm: [] for arm in arms}
    with ExitStack() as stack:
        homes = {
            weights: stack.enter_context(fleet(settings=settings(case, base.path, weights), prepare=ready))
            for weights in dict.fromkeys(arm.weights for arm in arms)
        }
        for seed in range(case.seeds):
            for arm in arms:
                found[arm] += homes[arm.weights].run([case.task(seed, arm)]).tasks
            print(f"  {case.name}, seed {seed}: {_newest(case, found)}", flush=True)
    return found


def in_turn(case: Case, base: BaseModel, arms: Sequence[Arm]) -> Found:
    """One engine after another, because a large base fits the memory once."""
    ready = partial(prepare, case, written(base, arms))
    found: dict[Arm, Sequence[TaskRun]] = {}
    for arm in arms:
        with fleet(settings=settings(case, base.path, arm.weights), prepare=ready) as home:
            found[arm] = home.run([case.task(seed, arm) for seed in range(case.seeds)]).tasks
        print(f"  {case.name}: {_newest(case, found)}", flush=True)
    return found


def written(base: BaseModel, arms: Sequence[Arm]) -> Path:
    """The folder, beside the base, with llama.cpp's files of it in each precision: made once, for all homes."""
    folder = base.path.with_name(f"{base.path.name}-gguf")
    for weights in dict.fromkeys(arm.weights for arm in (EXACT, *arms)):  # the others are made from f32
        ensure_base_gguf(base, folder, weights, len(all_cores()))
    return folder


def prepare(case: Case, folder: Path, home: Home) -> None:
    """Put the files in ``folder`` and the rows into a home."""
    for file in folder.iterdir():
        os.link(file, home.base / file.name)
    if case.letters:
        install(home, LETTERS, LETTERS.environment, case.steps, 0, case.prompts)


def settings(case: Case, base: Path, weights: str) -> str:
    """``marlaas.toml``."""
    return SETTINGS.format(base=json.dumps(str(base)), weights=weights, sequences=case.sequences)


def step_seconds(run: TaskRun) -> float:
    """Of a usual step of a run: the median, because some wait for an evaluation."""
    return median(later.created - earlier.created for earlier, later in pairwise(run.steps))


def gain_per_hour(case: Case, run: TaskRun) -> float:
    """Points that the score rises in an hour of such steps, from the first score to the last."""
    found = case.scores(run)
    made = run.steps[-1].step - (1 if case.letters else 0)
    return 3600 * (found[-1] - found[0]) / (made * step_seconds(run))


def rows(case: Case, found: Found) -> Iterator[Row]:
    """Speed beside f32, curves, differences from f32 at the end, and how far sampler and trainer are apart."""
    exact = found[EXACT]
    for arm, runs in found.items():
        seconds = Series(tuple(map(step_seconds, runs)))
        beside = None if arm is EXACT else Series(tuple(map(step_seconds, exact)))
        yield Row(f"{case.name}: a step, {arm.name}", "s", seconds, beside, "" if arm is EXACT else "f32")
    for arm, runs in found.items():
        name = f"{case.name}, {arm.name}"
        yield from (rewarded if case.letters else held_out)(name, runs).rows()
        hourly = interval([gain_per_hour(case, run) for run in runs])
        yield Row(f"{case.name}: gained in an hour, {arm.name}", "points", hourly, interval=True)
    for arm, runs in found.items():
        if arm is not EXACT:
            ours, theirs = ([case.scores(run)[-1] for run in side] for side in (runs, exact))
            yield difference(f"{case.name}: {arm.name} − f32, at the end", ours, theirs, "0 inside")


def method(trained: Case, half: Case) -> str:
    """What ran, with which settings."""
    return (
        "llama.cpp samples with its copy of the base in each precision, the trainer computes in float32 with the"
        " weights as they are; everything else is the same, and synchronous. *Trained base*: the shipped base in a"
        " wider shape (`benchmarks/many_tasks/wide_base.py`), the same function in rows of 256 and 512, so that every"
        f" matrix can be q4_k or q6_k; the bundled `arithmetic`, {trained.seeds} seeds, {trained.steps} steps of 8"
        f" groups of 8 at a learning rate of 0.0005, {trained.prompts} held-out prompts, greedily by the same sampler;"
        " an engine for each precision, which have their turns seed by seed; one arm is without importance weights."
        " *0.5 B shape*: random weights in the sizes of Qwen2.5-0.5B, whose `q4_k_m` has k-quants in the rows of 4,864"
        " alone, and q5_0 or q8_0 in those of 896;"
        f" {half.seeds} seeds, {half.steps} steps of 2 groups of 8 replies of {LETTERS.max_tokens} tokens, paid by the"
        " share of vowels, at a learning rate of 0.0001 (at 0.0005 one step is enough to say one token for ever); the"
        " score is the reward in training. Seed *i* has the same prompts, noise and adapter to begin with in all arms."
        " A step is a run's median. Intervals are Student's, 95 %, of the mean over seeds."
    )


def remarks(trained: Found, half: Found) -> str:
    """How far sampler and trainer are apart, and what that makes of the weights."""
    heads = ("base", "weights", "log-p gap", "largest", "cut by the cap", "mean weight", "effective sample size")
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for base, found in (("trained", trained), ("0.5 B shape", half)):
        for arm, runs in found.items():
            first = [run.steps[0].metrics for run in runs]
            values = (
                f"{fmean(one['drift_mean'] for one in first):.2g}",
                f"{max(one['drift_max'] for one in first):.2g}",
                f"{fmean(one['clipped'] for one in first):.2%}",
                f"{fmean(one['weight_mean'] for one in first):.3f}",
                f"{fmean(one['weight_ess'] for one in first):.1%}",
            )
            lines.append("| " + " | ".join((base, arm.name, *values)) + " |")
    return "Of each run's first step, the mean over seeds; gaps in nats.\n\n" + "\n".join(lines)


def _newest(case: Case, found: Found) -> str:
    parts = (f"{arm.name} {case.scores(runs[-1])[-1]:.1f} %" for arm, runs in found.items() if runs)
    return ", ".join(parts)
