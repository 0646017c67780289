"""The whole check, in order: the rows, the files, the groups, the rewards, and each update made again."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from .history import check_files, check_groups, check_home, check_steps, check_tokens
from .plays import check_own, check_plays
from .record import Group, Policy, Record, Trajectory, opened
from .report import Report
from .rewards import check_advantages, check_metrics
from .states import State
from .updates import Moments, Oracle

TINY = Path(__file__).resolve().parents[2] / "engine" / "base" / "tiny"
"""The base that ships with marlaas."""


def audit(home: Path, base: str = "", updates: bool = True, threads: int = 1) -> Report:
    """Check a home; ``updates`` are made again on ``base``, by default the one that the home's newest engine served.

    Raises ``sqlite3.Error`` for what is no database, ``OSError`` for a base that cannot be read.
    """
    report = Report()
    with opened(home / "marlaas.db") as record:
        served = base or record.base()
        oracle = Oracle(str(TINY) if served == "tiny" else served, threads) if updates else None
        check_home(record, report)
        policies = record.policies()
        for task in dict.fromkeys(policy.task.id for policy in policies):
            check_plays(record, [policy for policy in policies if policy.task.id == task], report)
        for policy in policies:
            check_steps(policy, report)
            states = check_files(policy, home, report)
            check_groups(policy, report)
            _check_experience(record, policy, states, oracle, report)
    return report


def _check_experience(
    record: Record, policy: Policy, states: dict[int, State], oracle: Oracle | None, report: Report
) -> None:
    """Step by step, so that only one step's trajectories are in memory."""
    steps: defaultdict[int | None, list[Group]] = defaultdict(list)
    for group in policy.groups:
        steps[group.step if group.state == "consumed" else None].append(group)
    updates = None if oracle is None else Updates(policy, states, oracle, report)
    for step, groups in steps.items():
        told = [(group, record.trajectories(group.id)) for group in groups]
        for group, trajectories in told:
            check_tokens(policy, group, trajectories, report)
            check_own(policy, group, trajectories, report)
            check_advantages(policy, group, trajectories, report)
        if step is not None:
            check_metrics(policy, step, told, report)
            if updates is not None:
                updates.check(step, [trajectories for _, trajectories in told])


class Updates:
    """Makes a policy's steps again, in order; carries the optimizer's moments over files that hold none."""

    def __init__(self, policy: Policy, states: dict[int, State], oracle: Oracle, report: Report) -> None:
        self._policy = policy
        self._states = states
        self._oracle = oracle
        self._report = report
        self._made: tuple[int, Moments] | None = None
        """The version that was made last, and its moments."""

    def check(self, step: int, groups: list[list[Trajectory]]) -> None:
        """Make one step again, if everything for it is still there."""
        before, after = self._states.get(step - 1), self._states.get(step)
        if after is not None and self._policy.living()[step].restarted:
            after = replace(after, moment1={}, moment2={})  # those that the next step began with, not this one's
        moments = None if before is None else self._moments(before)
        if before is None or after is None:
            self._report.skip("updates", "a state file is gone")
        elif moments is None:
            self._report.skip("updates", "the optimizer's moments were given up for room")
        elif any(trajectory.shrunk for group in groups for trajectory in group):
            self._report.skip("updates", "tokens were given up for room")
        else:
            made = self._oracle.check(self._policy.task, before, moments, after, groups, self._report)
            self._made = (step, made)

    def _moments(self, state: State) -> Moments | None:
        """The optimizer's at a version: its file's own, else those made for it, else none are known."""
        version = self._policy.living()[state.step]
        if state.resumable:
            return Moments(state.moment1, state.moment2)
        if state.step == 0 or version.restarted:
            return Moments.zero(state.adapter)
        return self._made[1] if self._made is not None and self._made[0] == state.step else None
