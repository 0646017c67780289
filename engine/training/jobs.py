"""Runs the jobs of several policies in one call: in shared passes, and so that one's failure does not affect others.

Gradients are added to the policies in the cache. Knows nothing of optimizers and files.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter

from ..errors import AdapterError
from ..faults import Point, reach
from .group_check import check_group
from .group_pass import Gradients
from .inputs import TrainGroup
from .memory.adapter_cache import AdapterCache
from .probing import probe_group
from .protocol import GroupStats, Job, Refused

log = logging.getLogger(__name__)


class Jobs:
    """Runs jobs over a base of ``vocabulary`` token ids, in passes made by ``gradients``."""

    def __init__(
        self, vocabulary: int, gradients: Gradients, cache: AdapterCache, close: Callable[[str], None]
    ) -> None:
        """``close`` closes a policy whose gradient may be wrong."""
        self._vocabulary = vocabulary
        self._gradients = gradients
        self._cache = cache
        self._close = close

    def run(self, jobs: Sequence[Job]) -> tuple[GroupStats | Refused, ...]:
        """Return one result per job. Raises what a pass raises if there is only one job."""
        if len({job.policy for job in jobs}) < len(jobs):
            raise ValueError("A policy has two jobs in one call.")
        results: dict[str, GroupStats | Refused] = {}
        run: list[Job] = []
        begun = perf_counter()
        add = self._add if len(jobs) == 1 else self._add_or_refuse
        for job in jobs:
            if not self._cache.fit([other.policy for other in (*run, job)]):
                results |= add(run, begun)
                run, begun = [], perf_counter()
            refusal = self._refusal(job, run)
            if refusal is None:
                run.append(job)
            else:
                results[job.policy] = refusal
        results |= add(run, begun)
        return tuple(results[job.policy] for job in jobs)

    def _refusal(self, job: Job, beside: Sequence[Job]) -> Refused | None:
        """What is wrong with a job; if nothing is, its policy is in memory afterwards, with those of ``beside``."""
        try:
            self._cache.use(*(other.policy for other in beside), job.policy)
        except AdapterError as error:
            return Refused.of(error)
        try:
            for group in _groups(job):
                check_group(group, self._vocabulary)
        except ValueError as error:
            return Refused(str(error), bad_input=True)
        return None

    def _add_or_refuse(self, jobs: Sequence[Job], begun: float) -> dict[str, GroupStats | Refused]:
        """As ``_add``, but the failure of a single job becomes its result, so that others in the call go on."""
        try:
            return self._add(jobs, begun)
        except Exception as error:
            policies = " and ".join(job.policy for job in jobs)  # one: several are run again one by one
            log.exception("A pass over groups of policy %s failed.", policies)
            reason = f"Training on groups of policy {policies} failed: {type(error).__name__}: {error}."
            return {job.policy: Refused(reason) for job in jobs}

    def _add(self, jobs: Sequence[Job], begun: float) -> dict[str, GroupStats | Refused]:
        """Run jobs in a shared pass; their time includes bringing their policies into memory.

        If it fails, they are run one by one. A policy whose own pass fails is closed, because its gradient may hold
        some of the groups. Raises what a single job's pass raises.
        """
        if not jobs:
            return {}
        memories = self._cache.use(*(job.policy for job in jobs))
        before = [memory.gathered() for memory in memories] if len(jobs) > 1 else []
        try:
            reach(Point.ACCUMULATE_BEGUN)
            stats = self._gradients([(m, _groups(job)) for m, job in zip(memories, jobs, strict=True)])
            reach(Point.ACCUMULATE_DONE)
        except Exception:
            if not before:
                self._close(jobs[0].policy)
                raise
            for memory, gathered in zip(memories, before, strict=True):
                memory.go_back(gathered)
            apart = [self._add_or_refuse([job], perf_counter()) for job in jobs]
            return {job.policy: one[job.policy] for job, one in zip(jobs, apart, strict=True)}
        paging = (perf_counter() - begun - sum(one.seconds for one in stats)) / len(jobs)
        return {job.policy: replace(one, seconds=one.seconds + paging) for job, one in zip(jobs, stats, strict=True)}


def _groups(job: Job) -> tuple[TrainGroup, ...]:
    """All that a job's passes are made over."""
    return (*job.groups, probe_group(job.probe)) if job.probe else job.groups
