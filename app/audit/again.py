"""A policy's optimizer steps made again, in order, as far as files and tokens are still there.

Loading it loads torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from .record import Policy, Trajectory
from .report import Report
from .states import State, Unreadable, read
from .updates import Moments, Oracle

TINY = Path(__file__).resolve().parents[2] / "engine" / "base" / "tiny"
"""The base that ships with marlaas."""


def oracle(base: str, threads: int) -> Oracle:
    """An ``Oracle`` on the base that an engine called ``base``."""
    return Oracle(str(TINY) if base == "tiny" else base, threads)


class Again:
    """Makes the steps of one policy again, and keeps the optimizer's moments for state files that hold none."""

    def __init__(self, policy: Policy, files: Mapping[int, Path], oracle: Oracle, report: Report) -> None:
        self._policy = policy
        self._files = files
        self._oracle = oracle
        self._report = report
        self._newest: tuple[int, State | None] | None = None
        """The version that was read last; the next step begins from it."""
        self._start: State | None = None
        """Version 0, where the KL term pulls to it."""
        self._made: tuple[int, Moments] | None = None
        """The version that was made last, and its moments."""

    def check(self, step: int, groups: Sequence[Sequence[Trajectory]]) -> None:
        """Make one step again, if everything for it is still there."""
        before, after = self._state(step - 1), self._state(step)
        if after is not None and self._policy.living()[step].restarted:
            after = replace(after, moment1={}, moment2={})  # its file has the next step's moments
        moments = None if before is None else self._moments(before)
        pulls = self._policy.task.pulls_to_start
        if pulls and self._start is None:
            self._start = self._state(0)
        if before is None or after is None or (pulls and self._start is None):
            self._report.skip("updates", "a state file is gone")
        elif moments is None:
            self._report.skip("updates", "the optimizer's moments were given up for room")
        elif any(trajectory.shrunk for group in groups for trajectory in group):
            self._report.skip("updates", "tokens were given up for room")
        else:
            made = self._oracle.check(self._policy.task, before, moments, after, groups, self._report, self._start)
            self._made = (step, made)

    def _state(self, number: int) -> State | None:
        """The state of a version whose file is sound; None for others, and where an engine has voided it meanwhile."""
        if self._newest is None or self._newest[0] != number:
            path, state = self._files.get(number), None
            if path is not None:
                try:
                    state = read(path)
                except Unreadable:
                    state = None
            self._newest = (number, state)
        return self._newest[1]

    def _moments(self, state: State) -> Moments | None:
        """The optimizer's moments at a version: those in its file, else those just computed for it, else None."""
        version = self._policy.living()[state.step]
        if state.resumable:
            return Moments(state.moment1, state.moment2)
        if state.step == 0 or version.restarted:
            return Moments.zero(state.adapter)
        return self._made[1] if self._made is not None and self._made[0] == state.step else None
