"""The whole check, in order: the rows, the files, the groups, the rewards, and if asked each update made again.

A database that is damaged is a finding.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from .history import (
    check_advantages,
    check_files,
    check_groups,
    check_home,
    check_members,
    check_metrics,
    check_open,
    check_own,
    check_plays,
    check_spare,
    check_steps,
    check_tokens,
    files_of,
)
from .record import Group, Policy, Record, opened
from .report import Report

if TYPE_CHECKING:
    from .updates import Oracle

_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_ODD = (ValueError, KeyError, TypeError, IndexError, AttributeError)
"""What is raised for rows that hold something else than they should."""


def audit(home: Path, updates: bool = True) -> Report:
    """Check a home; ``updates`` are made again on the base that its newest engine served."""
    report = Report()
    try:
        _audit(home, updates, report)
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF not in _DAMAGED:
            raise
        report.check(False, "the database is whole", "home", f"{home / 'marlaas.db'} is damaged: {error}")
    return report


def _audit(home: Path, updates: bool, report: Report) -> None:
    there = files_of(home)
    with opened(home / "marlaas.db") as record:
        oracle = _oracle(record.base()) if updates else None
        check_home(record, report)
        policies = record.policies()
        check_spare(policies, home, there, report)
        for task in dict.fromkeys(policy.task.id for policy in policies):
            own = [policy for policy in policies if policy.task.id == task]
            check_plays(record, own, report)
            check_open(record, own, report)
        for policy in policies:
            try:
                check_steps(policy, report)
                files = check_files(policy, home, record.state_now, report)
                check_groups(policy, report)
                _check_experience(record, policy, files, oracle, report)
            except _ODD as error:
                problem = f"its rows hold what cannot be: {type(error).__name__}: {error}"
                report.check(False, "rows can be read", policy.task.where, problem)


def _oracle(base: str) -> Oracle:
    from .updates import oracle

    return oracle(base)


def _check_experience(
    record: Record, policy: Policy, files: Mapping[int, Path], oracle: Oracle | None, report: Report
) -> None:
    """Check step by step, so that only one step's trajectories are in memory."""
    steps: defaultdict[int | None, list[Group]] = defaultdict(list)
    for group in policy.groups:
        steps[group.step if group.state == "consumed" else None].append(group)
    again = None
    if oracle is not None:
        from .updates import Again

        again = Again(policy, files, oracle, report)
    for step, groups in steps.items():
        told = [(group, record.trajectories(group.id)) for group in groups]
        for group, trajectories in told:
            check_tokens(policy, group, trajectories, report)
            check_own(policy, group, trajectories, report)
            check_advantages(policy, group, trajectories, report)
            check_members(policy, group, trajectories, report)
        if step is not None:
            check_metrics(policy, step, told, report)
            if again is not None:
                again.check(step, [trajectories for _, trajectories in told])
