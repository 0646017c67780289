"""Runs of either side, and what is read off them. Pure data and arithmetic; starts nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from ..report.figures import Series
from .workload import Workload

THEIRS = "TRL"


@dataclass(frozen=True)
class Arm:
    """How our side runs."""

    staleness: int = 2
    sampler: str = "auto"
    weights: str = "auto"


OURS = {
    "staleness 2": Arm(),
    "staleness 0": Arm(staleness=0),
    "staleness 2, llama.cpp": Arm(sampler="llama.cpp"),
}
"""The default, the synchronous algorithm, which is TRL's, and the other sampler."""


@dataclass(frozen=True)
class Run:
    """A training run from the start of its first process."""

    started: float
    """Seconds since the epoch, like all times here: two processes must agree on them."""
    ends: Sequence[float]
    """When each optimizer step was finished."""
    rewards: Sequence[float]
    """Mean reward of each step's episodes."""
    lengths: Sequence[float]
    """Mean number of sampled tokens of each step's episodes."""
    load: Mapping[str, float] = field(default_factory=dict)
    """Cores in use by stage while it ran steadily."""
    others: float = 0.0
    """How many of its cores other programs used meanwhile: 0 on a machine that it had to itself."""
    training: float = 0.0
    """Seconds a step that the trainer says it was busy."""
    before: Sequence[float] = ()
    """Reward on each held-out prompt at the beginning, if that was asked for."""
    after: Sequence[float] = ()
    """The same at the end."""
    begun: float = 0.0
    """When the first episode could begin: start-up was over."""

    def step_seconds(self, first: int, last: int) -> float:
        """Seconds a step from the end of step ``first`` to that of step ``last``, counted from 1; 0 is the beginning.

        A mean, not a median: where stages overlap, steps come in bursts, and only their rate means anything.
        """
        return (self.ends[last - 1] - (self.ends[first - 1] if first else self.begun)) / (last - first)

    def wall_seconds(self, last: int) -> float:
        """Seconds from the start, imports and all, to the end of step ``last``."""
        return self.ends[last - 1] - self.started

    def reward_near(self, mark: int, window: int) -> float:
        """Mean reward of the ``window`` steps that end with step ``mark``."""
        return fmean(self.rewards[mark - window : mark])


@dataclass(frozen=True)
class Case:
    """One workload on some cores."""

    workload: Workload
    cores: tuple[int, ...]
    steps: int
    settled: int
    """The step after which time counts. 0: all steps count, and no others are made. So the stages fill and run empty
    within the time, and neither side has work in stock at its beginning or its end: for steps so long that few can be
    made."""
    repetitions: int
    goal: str
    fewer: int = 0
    """Steps that TRL makes where it makes fewer: its stages take turns, so that each of its steps takes as long."""

    def made_by(self, arm: str) -> int:
        """Steps that are measured of an arm."""
        return self.fewer if self.fewer and arm == THEIRS else self.steps

    @property
    def where(self) -> str:
        """For the tables."""
        return f"{self.workload.name}, {len(self.cores)} {'core' if len(self.cores) == 1 else 'cores'}"


@dataclass(frozen=True)
class Results:
    """The repetitions of every arm of a case."""

    case: Case
    runs: dict[str, list[Run]] = field(default_factory=dict)

    def add(self, arm: str, run: Run) -> None:
        """Keep one more repetition."""
        self.runs.setdefault(arm, []).append(run)

    @property
    def ours(self) -> list[str]:
        """Our arms."""
        return [arm for arm in self.runs if arm != THEIRS]

    def steps(self, arm: str) -> Series:
        """Milliseconds a step, once things have settled."""
        case = self.case
        return Series(tuple(1e3 * run.step_seconds(case.settled, case.made_by(arm)) for run in self.runs[arm]))

    def walls(self, arm: str) -> Series:
        """Seconds from the start to the last step."""
        return Series(tuple(run.wall_seconds(self.case.steps) for run in self.runs[arm]))

    def spent(self, arm: str) -> Series | None:
        """Milliseconds of processor time a step, of all processes together; None if a run was too short to tell."""
        pairs = list(zip(self.steps(arm).values, self.runs[arm], strict=True))
        if not all(run.load for _, run in pairs):
            return None
        return Series(tuple(step * sum(run.load.values()) for step, run in pairs))

    def rewards(self, arm: str, mark: int, window: int) -> Series:
        """Mean reward around a step."""
        return Series(tuple(run.reward_near(mark, window) for run in self.runs[arm]))

    def newest(self) -> str:
        """The last repetition in a line, for whoever waits."""
        return ", ".join(f"{arm} {self.steps(arm).values[-1]:.0f} ms" for arm in self.runs)
