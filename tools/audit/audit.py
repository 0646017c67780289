"""The whole check, in order: the rows, the files, the groups, the rewards, and each update made again."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from .history import check_files, check_groups, check_home, check_steps, check_tokens
from .record import Group, Policy, Record, Trajectory, opened
from .report import Report
from .rewards import check_advantages, check_metrics
from .states import State
from .updates import Oracle

TINY = Path(__file__).resolve().parents[2] / "engine" / "base" / "tiny"
"""The base that ships with marlaas."""


def audit(home: Path, base: str = "", updates: bool = True) -> Report:
    """Check a home; ``updates`` are made again on ``base``, by default the one that the home's newest engine served.

    Raises ``sqlite3.Error`` for what is no database, ``OSError`` for a base that cannot be read.
    """
    report = Report()
    with opened(home / "marlaas.db") as record:
        served = base or record.base()
        oracle = Oracle(str(TINY) if served == "tiny" else served) if updates else None
        check_home(record, report)
        for policy in record.policies():
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
    for step, groups in steps.items():
        told = [(group, record.trajectories(group.id)) for group in groups]
        for group, trajectories in told:
            check_tokens(policy, group, trajectories, report)
            check_advantages(policy, group, trajectories, report)
        if step is not None:
            check_metrics(policy, step, told, report)
            if oracle is not None:
                _check_update(policy, step, [t for _, t in told], states, oracle, report)


def _check_update(
    policy: Policy,
    step: int,
    groups: list[list[Trajectory]],
    states: dict[int, State],
    oracle: Oracle,
    report: Report,
) -> None:
    before, after = states.get(step - 1), states.get(step)
    if before is None or after is None:
        report.skip("updates", "a state file is gone")
    elif not before.resumable or not after.resumable:
        report.skip("updates", "a state file was kept without its moments")
    elif any(trajectory.shrunk for group in groups for trajectory in group):
        report.skip("updates", "tokens were given up for room")
    else:
        oracle.check(policy.task, before, after, groups, report)
