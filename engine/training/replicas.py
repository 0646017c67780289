"""Models of one trainer that share the work of a call, and what happens when memory runs out."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
import torch

from ..devices import ran_out
from ..errors import AdapterError
from ..faults import Point, reach
from ..trajectories import Logprobs, Tokens
from .group_pass import Gradients, Work, add_gradients, check_group, joined, probe_group, sequence_logprobs
from .inputs import TrainGroup
from .memory.adapter_cache import AdapterCache
from .memory.policy_memory import PolicyMemory
from .model import Model
from .protocol import GroupStats, Job, LogWeights, Refused

# A failed pass is undone first and repeated in passes of half the size, so that nothing counts twice.

log = logging.getLogger(__name__)
R = TypeVar("R")


class DeviceFull(Exception):
    """A device has no memory for a pass; ``args`` are its name for people. Holds none of the pass's tensors."""


def on(name: str, work: Callable[[], R]) -> R:
    """Do work on the device called ``name``. Raises ``DeviceFull`` for torch's out-of-memory error."""
    try:
        return work()
    except Exception as error:
        if not ran_out(error):
            raise
        log.warning("No memory on %s: %s", name, error)
    raise DeviceFull(name)  # outside of the handler, so that the pass's frames and tensors are freed


class PassBackoff:
    """Repeats work in smaller passes if it does not fit. ``shrink`` halves a pass; False if it is the smallest."""

    def __init__(self, shrink: Callable[[], bool]) -> None:
        self._shrink = shrink
        self._notices: list[str] = []

    def make(self, work: Callable[[], R], undo: Callable[[], None] = lambda: None) -> R:
        while True:
            try:
                return work()
            except DeviceFull as error:
                (name,) = error.args
            undo()
            release()
            if not self._shrink():
                raise AdapterError(
                    f"Training ran out of memory on {name}, even with a single sequence in a pass.",
                    "Lower `max_episode_tokens` in the task file or the rank, or leave the trainer more memory.",
                )
            notice = f"Training ran out of memory on {name}; passes are half as large from now on."
            log.warning(notice)
            self._notices.append(notice)

    def notice(self) -> str:
        notices, self._notices = self._notices, []
        if len(notices) > 1:
            return notices[-1].replace("half as large", f"{2 ** len(notices)} times smaller")
        return "".join(notices)


def once_more(name: str, work: Callable[[], R]) -> R:
    """Do work that is not a pass; repeat it once if memory runs out, then raise ``AdapterError``."""
    try:
        return on(name, work)
    except DeviceFull:
        release()
    try:
        return on(name, work)
    except DeviceFull:
        raise AdapterError(
            f"There is no memory on {name} for an optimizer step.",
            "Lower the rank in the task file or `slots` under [training] in marlaas.toml, or leave the trainer more.",
        ) from None


def release() -> None:
    """Give cached memory back to the device."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


class Jobs:
    """Runs jobs over a base of ``vocabulary`` token ids, in passes made by ``gradients``.

    ``close`` closes a policy whose gradient may be wrong.
    """

    def __init__(
        self, vocabulary: int, gradients: Gradients, cache: AdapterCache, close: Callable[[str], None]
    ) -> None:
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
        try:
            return self._add(jobs, begun)
        except Exception as error:
            policies = " and ".join(job.policy for job in jobs)
            log.exception("A pass over groups of policy %s failed.", policies)
            reason = f"Training on groups of policy {policies} failed: {type(error).__name__}: {error}."
            return {job.policy: Refused(reason) for job in jobs}

    def _add(self, jobs: Sequence[Job], begun: float) -> dict[str, GroupStats | Refused]:
        """Run jobs in a shared pass; if it fails, one by one.

        A policy whose own pass fails is closed, because its gradient may hold some of the groups.
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
    return (*job.groups, probe_group(job.probe)) if job.probe else job.groups


# The groups of a call are divided among copies of the base. Policies are on the first device, the primary; the others
# get weights for a call and return a gradient. These are added in the order of devices, so that sums repeat.

WORTH = 1024
"""The least tokens per device for which dividing a call is worth the copies."""


@dataclass(frozen=True)
class Replica:
    """A copy of the base."""

    model: Model[Any]
    device: str
    name: str
    thread: ThreadPoolExecutor | None = None


class Replicas:
    """Copies of the base; the first is the primary.

    ``make`` loads a model onto a device; ``threads`` is the number of cores of each.
    """

    def __init__(
        self, make: Callable[[str], Model[Any]], devices: Sequence[str], names: Sequence[str], threads: int
    ) -> None:
        self._all = [Replica(make(devices[0]), devices[0], names[0])]
        for device, name in list(zip(devices, names, strict=True))[1:]:
            thread = ThreadPoolExecutor(1, f"trainer on {name}", initializer=torch.set_num_threads, initargs=(threads,))
            self._all.append(Replica(thread.submit(make, device).result(), device, name, thread))

    @property
    def primary(self) -> Replica:
        return self._all[0]

    def add_gradients(self, work: Work) -> tuple[GroupStats, ...]:
        if len(self._all) == 1:
            return on(self.primary.name, partial(add_gradients, self.primary.model, work))
        begun = perf_counter()
        parts = shares([groups for _, groups in work], len(self._all), WORTH)
        policies = [memory for memory, _ in work]
        copies = [policies, *([policy.on(replica.device) for policy in policies] for replica in self._all[1:])]
        passes = [
            partial(on, replica.name, partial(add_gradients, replica.model, list(zip(own, part, strict=True))))
            for replica, own, part in zip(self._all, copies, parts, strict=True)
        ]
        stats = self._at_once(passes)
        for others in copies[1:]:
            for policy, other in zip(policies, others, strict=True):
                policy.take(other)
        seconds = perf_counter() - begun
        tokens = [max(1, sum(each[number].tokens for each in stats)) for number in range(len(work))]
        return tuple(
            together(
                groups,
                [(part[number], each[number]) for part, each in zip(parts, stats, strict=True)],
                seconds * tokens[number] / sum(tokens),
            )
            for number, (_, groups) in enumerate(work)
        )

    def logprobs(self, memory: PolicyMemory, tokens: Tokens, start: int, temperature: float) -> Logprobs:
        primary = self.primary
        return on(primary.name, partial(sequence_logprobs, primary.model, memory, tokens, start, temperature))

    def unmount(self) -> None:
        for replica in self._all:
            replica.model.unmount()

    def shrink(self) -> bool:
        return any([replica.model.shrink() for replica in self._all])

    def shutdown(self) -> None:
        for replica in self._all:
            if replica.thread is not None:
                replica.thread.shutdown()

    def _at_once(self, passes: Sequence[Callable[[], R]]) -> list[R]:
        """Run each pass on its replica. An error is raised once all have ended; ``DeviceFull`` before any other."""
        threads = [replica.thread for replica in self._all if replica.thread is not None]
        futures = [thread.submit(one) for thread, one in zip(threads, passes[1:], strict=True)]
        own: Future[R] = Future()
        try:
            own.set_result(passes[0]())
        except Exception as error:
            own.set_exception(error)
        wait(futures)
        failures = [failure for future in (own, *futures) if (failure := future.exception()) is not None]
        for failure in sorted(failures, key=lambda failure: not isinstance(failure, DeviceFull)):
            raise failure
        return [future.result() for future in (own, *futures)]


PolicyGroups = tuple[TrainGroup, ...]


@dataclass(frozen=True)
class _Run:
    policy: int
    group: int
    begin: int
    end: int
    tokens: int


def shares(work: Sequence[Sequence[TrainGroup]], replicas: int, worth: int) -> tuple[tuple[PolicyGroups, ...], ...]:
    """For each replica and policy its groups, in order.

    The largest runs of sequences are assigned first. Below ``worth`` tokens per replica, the first computes everything.
    """
    total = sum(_tokens(group) for groups in work for group in groups)
    if replicas == 1 or total < worth * replicas:
        nothing: tuple[PolicyGroups, ...] = tuple(() for _ in work)
        return (tuple(map(tuple, work)), *(nothing for _ in range(replicas - 1)))
    loads, taken = [0] * replicas, [[] for _ in range(replicas)]  # type: tuple[list[int], list[list[_Run]]]
    for run in sorted(_runs(work, max(1, total // replicas)), key=lambda run: -run.tokens):
        least = loads.index(min(loads))
        loads[least] += run.tokens
        taken[least].append(run)
    return tuple(_laid_out(work, runs) for runs in taken)


def _runs(work: Sequence[Sequence[TrainGroup]], most: int) -> Iterator[_Run]:
    for policy, groups in enumerate(work):
        for number, group in enumerate(groups):
            begin = tokens = 0
            for index, sequence in enumerate(group.sequences):
                if tokens and tokens + len(sequence.tokens) > most:
                    yield _Run(policy, number, begin, index, tokens)
                    begin, tokens = index, 0
                tokens += len(sequence.tokens)
            yield _Run(policy, number, begin, len(group.sequences), tokens)


def _laid_out(work: Sequence[Sequence[TrainGroup]], runs: Sequence[_Run]) -> tuple[PolicyGroups, ...]:
    found: list[PolicyGroups] = []
    for policy, groups in enumerate(work):
        own: list[TrainGroup] = []
        for number, group in enumerate(groups):
            parts = sorted((run.begin, run.end) for run in runs if (run.policy, run.group) == (policy, number))
            if parts:
                own.append(replace(group, sequences=tuple(s for part in parts for s in group.sequences[slice(*part)])))
        found.append(tuple(own))
    return tuple(found)


def together(
    groups: Sequence[TrainGroup], parts: Sequence[tuple[Sequence[TrainGroup], GroupStats]], seconds: float
) -> GroupStats:
    """The statistics of a policy's ``groups`` from those of its parts, in order, so that the sums repeat."""
    stats = [each for _, each in parts]
    return GroupStats(
        tokens=sum(each.tokens for each in stats),
        loss=sum(each.loss for each in stats),
        entropy=sum(each.entropy for each in stats),
        clipped=sum(each.clipped for each in stats),
        gap_sum=sum(each.gap_sum for each in stats),
        gap_max=max(each.gap_max for each in stats),
        kl=sum(each.kl for each in stats),
        seconds=seconds,
        measured=sum(each.measured for each in stats),
        weights=_weights(groups, parts),
        scores=joined(groups, ((own, each.scores) for own, each in parts)),
    )


def _weights(
    groups: Sequence[TrainGroup], parts: Sequence[tuple[Sequence[TrainGroup], GroupStats]]
) -> dict[int, LogWeights]:
    found: dict[int, LogWeights] = {}
    for own, stats in parts:
        for group in own:
            if group.number in stats.weights:
                stops = np.cumsum([np.count_nonzero(sequence.mask) for sequence in group.sequences])
                pieces = np.split(stats.weights[group.number], stops[:-1])
                found.update((id(s), piece) for s, piece in zip(group.sequences, pieces, strict=True))
    return {
        group.number: np.concatenate([found[id(sequence)] for sequence in group.sequences])
        for group in groups
        if group.sequences and all(id(sequence) in found for sequence in group.sequences)
    }


def _tokens(group: TrainGroup) -> int:
    return sum(len(sequence.tokens) for sequence in group.sequences)
