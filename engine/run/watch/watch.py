"""Looks at a policy's learning after each step and evaluation, and tells people once what goes wrong.

A finding is stored with its step and the rollouts that show it, written into the log and sent as a notification. What
is stored is known to the next engine, which tells nobody twice. A task file may ask that a finding pauses the task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from ...errors import Fruitless
from ...fleet import Services
from ...spec import NAMES as CALLED, REWARD_HACKING, TaskSpec, as_number, components_of
from ...store import HeldOutScore, NewFinding
from ...training import ClosedGroup
from ..evaluation.suites import deciding
from ..trained_policy import TrainedPolicy
from .course import LATELY, NAMES, WINDOW, Course, Learning, chosen
from .detectors import Evidence, found

FIRST = 16
"""Episodes from which the share of cut off replies is judged before the first step: two groups of the default size."""


class Watch:
    """Of one policy, while one learner trains it."""

    def __init__(self, services: Services, trained: TrainedPolicy) -> None:
        self._store = services.store
        self._tell = services.tell
        self._task, self._policy, self._name = trained.task, trained.number, trained.name
        self._spec = trained.spec
        self._suite = deciding(trained.spec)
        self._measured = [self._suite] if self._suite else list(components_of(trained.spec))
        """Under which names held-out episodes are stored."""
        self._thinks = services.traits.thinks and trained.spec.sampling.thinking is not False
        self._opening: float | None = None
        self._course = Course.of(self._store.findings.seen(self._policy, NAMES, WINDOW, LATELY))

    @property
    def decisive(self) -> bool:
        """Whether a held-out score may pause the task."""
        return REWARD_HACKING in self._spec.watch.pause

    def see(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take in the metrics of a step that was just committed."""
        self._course.see(step, self._store.findings.environment_at(self._policy, step), metrics)

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take in metrics of a committed step that are known only later."""
        self._course.add(step, metrics)

    async def see_first(self, groups: Sequence[ClosedGroup]) -> None:
        """Take in the groups of the first step so far: whether replies are cut off is told before that is made."""
        episodes = [one for closed in groups for one in closed.group.episodes]
        if self._opening is None and not self._course.seen and len(episodes) >= FIRST:
            self._opening = sum(any(t.cut for t in one.trajectories) for one in episodes) / len(episodes)
            await self.look()

    async def look(self) -> None:
        """Find what there is to find, and tell it."""
        findings, scores = self._store.findings, self._store.evaluations.of(self._suite).compared(self._policy)
        signs = found(replace(learning(self._course, scores, self._spec), opening=self._opening, limits=self._limits))
        known = findings.known(self._policy)
        for code, evidence in signs.items():
            if code not in known or not known[code].holds:
                await self._keep(code, evidence)
        lapsed = [code for code, one in known.items() if one.holds and code not in signs]
        if lapsed:
            await self._store.patiently(partial(findings.lapse, self._policy, lapsed))

    def pausing(self) -> Fruitless | None:
        """Why the task is to pause now, if it is: because of a finding, after which no person has resumed it."""
        if not self._spec.watch.pause:
            return None
        known = self._store.findings.known(self._policy)
        code = next((code for code in CALLED if code in known and known[code].pending), None)
        return paused(self._task, code, known[code].step) if code else None

    @property
    def _limits(self) -> Mapping[str, float]:
        sampling = self._spec.sampling
        return {
            "max_tokens": as_number(sampling.max_tokens),
            "max_episode_tokens": as_number(sampling.max_episode_tokens),
            "thinks": float(self._thinks),
        }

    async def _keep(self, code: str, evidence: Evidence) -> None:
        store, step = self._store, self._course.newest
        if code == REWARD_HACKING:
            step = int(evidence["score_step"])
            said = partial(store.findings.said, self._policy, split="eval", suites=self._measured)
            rollouts = chosen(code, said(step=step), said(step=int(evidence["best_step"])))
        else:
            rollouts = chosen(code, store.findings.said(self._policy, step))
        finding = NewFinding(code, step, evidence, rollouts)
        pauses = code in self._spec.watch.pause
        if await store.patiently(partial(store.findings.add, self._policy, finding, pauses)):
            store.telemetry.event("learning", sentence(self._task, self._name, code, step), self._task, "warning")
            self._tell("finding", self._task)


def learning(course: Course, scores: tuple[HeldOutScore, ...], spec: TaskSpec) -> Learning:
    """What detectors are asked about, for a task."""
    others = [policy for policy in spec.policies.values() if policy.trained or policy.pool]
    measure = next((suite for suite in spec.eval.suite if suite.decides), spec.eval)
    evaluations = 2 + (spec.steps // measure.every if measure.every else 0)
    uniform = spec.train.sampling == "uniform"
    return Learning(course, scores, spec.watch, spec.steps, evaluations, alone=len(others) < 2, uniform=uniform)


def sentence(task: int, policy: str, code: str, step: int) -> str:
    """A finding for the log."""
    return (
        f"Learning of {policy} seems to go wrong: {CALLED[code]} at step {step}. `marlaas show {task}` says what shows"
        " it, and what to do."
    )


def paused(task: int, code: str, step: int) -> Fruitless:
    """Why a task pauses because of a finding."""
    return Fruitless(
        f"Learning seems to go wrong: {CALLED[code]} at step {step}, for which 'watch.pause' pauses the task.",
        f"`marlaas show {task}` says what to do; `marlaas resume {task}` goes on all the same.",
    )
