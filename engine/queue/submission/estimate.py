"""Estimates time, memory and disk of tasks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from ...models.config import BaseConfig
from ...models.memory import adapter_bytes, policy_bytes, version_bytes
from ...spec.automatic import BaseTraits, as_number, bounded, by_base
from ...spec.task import TaskSpec, agent_map_of, spec_of
from ...spec.validation import AUTO
from ...store.queries.learning import PastRun

# Pure. Time needs earlier tasks; disk is an upper bound without measurements.

NEAREST = 5
"""Past runs, nearest in episodes a step."""
WHOLE = 3
"""A version with its optimizer's two moments, in adapters."""
RESUMABLE = 2
TOKEN_BYTES = 9
"""Number, log-probability and mask."""
CHARACTERS = 4
"""Bytes of text per token, at most."""
ROW_BYTES = 200
"""A trajectory's row and its index entries."""


@dataclass(frozen=True)
class TimeEstimate:
    """Seconds, on a machine as busy as in past runs."""

    seconds: float
    """Median; ``least``, ``most``: fastest, slowest past run."""
    least: float
    most: float
    runs: int
    alike: bool
    rollout: float
    training: float
    """Of the training worker."""


@dataclass(frozen=True)
class DiskEstimate:
    """Bytes that a task leaves."""

    adapters: int
    trajectories: int
    measured: bool
    """False: bytes by the limits on tokens."""

    @property
    def total(self) -> int:
        return self.adapters + self.trajectories


@dataclass(frozen=True)
class TaskEstimate:
    """The estimate of one task."""

    time: TimeEstimate | None
    """None: no earlier task on its environment."""
    disk: DiskEstimate
    memory: int
    """Bytes in both workers, at most."""
    most_tokens: int


def estimate_task(
    spec: TaskSpec, runs: Sequence[PastRun], base: BaseConfig, token_steps: int, torch_sampler: bool, context: int
) -> TaskEstimate:
    """Time, disk, memory and tokens.

    ``runs``: on its environment; ``token_steps``: steps with kept tokens (0: all); ``torch_sampler``: torch samples;
    ``context``: tokens of a conversation.
    """
    traits = BaseTraits(base.hidden_size, base.context_length)
    whole = whole_of(by_base(spec, traits))
    most = bounded(whole, traits)
    return TaskEstimate(
        time_of(whole, runs),
        disk_of(most, runs, base, token_steps),
        memory_of(spec, base, torch_sampler, context),
        trained_episodes(whole) * as_number(most.sampling.max_episode_tokens) * _agents(spec),
    )


def trained_episodes(spec: TaskSpec) -> int:
    """Of an evaluation the measured ones."""
    return measured_episodes(spec) if spec.kind == "eval" else spec.steps * spec.group_episodes


def measured_episodes(spec: TaskSpec) -> int:
    """Of one policy, with suites and test split; of an evaluation all."""
    if spec.kind == "eval":
        return len(spec.versions) * spec.eval.prompts * spec.eval.samples

    def times(every: int) -> int:
        return 2 + (max(0, spec.steps - 1) // every if every else 0)

    suites = sum(times(suite.every) * suite.prompts * suite.samples for suite in spec.eval.suite)
    own = times(spec.eval.every) * spec.eval.prompts + 2 * spec.eval.test_prompts
    return own * spec.eval.samples * max(1, len(spec.mixture)) + suites


def whole_of(spec: TaskSpec) -> TaskSpec:
    """With its policies' largest batch: a shared group is run once."""
    most = max(own.train.groups_per_step for own in _trained(spec))
    return replace(spec, train=replace(spec.train, groups_per_step=most))


def memory_of(spec: TaskSpec, base: BaseConfig, torch_sampler: bool, context: int) -> int:
    """Bytes of the trained policies, their served versions, and partners."""
    if spec.kind == "eval":  # one version at a time; its rank is known when it is served
        return version_bytes(base, spec.policy.rank, torch_sampler)
    policies = agent_map_of(spec).policies
    trained = sum(
        policy_bytes(base, own.policy.rank, context)
        + (spec.train.max_staleness + 1) * version_bytes(base, own.policy.rank, torch_sampler)
        for own in _trained(spec)
    )
    partners = [policy for policy in policies.values() if not policy.trained]
    ranks = [policies[p.pool].rank if p.pool else p.rank for p in partners for _ in range(p.size if p.pool else 1)]
    return trained + sum(version_bytes(base, rank, torch_sampler) for rank in ranks)


def _trained(spec: TaskSpec) -> list[TaskSpec]:
    return [spec_of(spec, name) for name in agent_map_of(spec).trained]


def _agents(spec: TaskSpec) -> int:
    """One if the task file names none."""
    return max(1, len(spec.agents))


def time_of(spec: TaskSpec, runs: Sequence[PastRun]) -> TimeEstimate | None:
    """By an episode's seconds in the nearest past runs; None without runs."""
    near = nearest(spec, runs)
    if not near:
        return None
    episodes, trains = trained_episodes(spec), spec.kind != "eval"
    rates = [(run.seconds / run.steps if trains else run.rollout) / run.episodes for run in near]
    return TimeEstimate(
        seconds=episodes * median(rates),
        least=episodes * min(rates),
        most=episodes * max(rates),
        runs=len(near),
        alike=all(spec.sampling.max_tokens in (AUTO, run.max_tokens) for run in near),
        rollout=episodes * median(run.rollout / run.episodes for run in near),
        training=episodes * median(run.training / run.episodes for run in near) if trains else 0.0,
    )


def nearest(spec: TaskSpec, runs: Sequence[PastRun]) -> list[PastRun]:
    """Nearest in episodes a step; with its ``max_tokens`` if any."""
    same = [run for run in runs if spec.sampling.max_tokens in (AUTO, run.max_tokens)]
    return sorted(same or runs, key=lambda run: abs(math.log(run.episodes / spec.group_episodes)))[:NEAREST]


def disk_of(spec: TaskSpec, runs: Sequence[PastRun], base: BaseConfig, token_steps: int) -> DiskEstimate:
    """Bytes of versions that ``adapters/statefile.py`` keeps, and of all trajectories."""
    series = spec.steps // spec.keep.every if spec.keep.every else 0
    pools = Counter({policy.pool: policy.size for policy in agent_map_of(spec).policies.values() if policy.pool})
    adapters = sum(
        adapter_bytes(base, own.policy.rank) * (RESUMABLE * WHOLE + 1 + series + pools[name])
        for name, own in zip(agent_map_of(spec).trained, _trained(spec), strict=True)
        if spec.kind != "eval"
    )
    agents = _agents(spec)
    trained = trained_episodes(spec) * agents if spec.kind != "eval" else 0
    held_out = measured_episodes(spec) * agents * len(_trained(spec))
    near = nearest(spec, runs)
    if near:
        tokens = median(run.trajectory_tokens for run in near)
        text = median(run.trajectory_text for run in near)
    else:
        tokens = float(as_number(spec.sampling.max_episode_tokens))
        text = CHARACTERS * tokens
    whole = min(trained, token_steps * spec.group_episodes * agents) if token_steps else trained
    trajectories = (trained + held_out) * (text + ROW_BYTES) + (whole + held_out) * TOKEN_BYTES * tokens
    return DiskEstimate(adapters, int(trajectories), bool(near))


def together(tasks: Sequence[TaskEstimate]) -> float | None:
    """Seconds of simultaneous training; None if one is unknown.

    The largest of the longest task, the rollout's sum, the training's sum.
    """
    times = [task.time for task in tasks if task.time is not None]
    if not times or len(times) < len(tasks):
        return None
    return max(*(time.seconds for time in times), sum(t.rollout for t in times), sum(t.training for t in times))
