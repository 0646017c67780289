"""Models of one trainer that share the work of a call, and what happens when memory runs out."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

import torch

from ..devices import ran_out
from ..errors import AdapterError
from ..faults import Point, reach
from ..trajectories import Logprobs, Tokens
from .group_pass import Gradients, Work, add_gradients, check_group, sequence_logprobs
from .memory import AdapterCache, PolicyMemory
from .model import Model
from .protocol import GroupStats, Job, Refused, TrainGroup

# A failed pass is undone first and repeated in passes of half the size, so that nothing counts twice.

log = logging.getLogger(__name__)
R = TypeVar("R")
Score = Callable[[PolicyMemory, Tokens, int, float], Logprobs]


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
        self,
        vocabulary: int,
        gradients: Gradients,
        score: Score,
        cache: AdapterCache,
        close: Callable[[str], None],
    ) -> None:
        self._vocabulary = vocabulary
        self._gradients = gradients
        self._score = score
        self._cache = cache
        self._close = close

    def run(self, jobs: Sequence[Job]) -> tuple[GroupStats | Refused, ...]:
        """Return one result per job. Raises what a pass raises if there is only one job."""
        if len({job.policy for job in jobs}) < len(jobs):
            raise ValueError("A policy has two jobs in one call.")
        results: dict[str, GroupStats | Refused] = {}
        scores: dict[str, tuple[Logprobs, ...]] = {}
        run: list[Job] = []
        begun = perf_counter()
        add = self._add if len(jobs) == 1 else self._add_or_refuse
        for job in jobs:
            if not self._cache.fit([other.policy for other in (*run, job)]):
                results |= add(run, begun)
                run, begun = [], perf_counter()
            try:
                *_, memory = self._cache.use(*(other.policy for other in run), job.policy)
                for group in job.groups:
                    check_group(group, self._vocabulary)
                probe, temperature = job.probe.sequences if job.probe else (), memory.config.temperature
                scores[job.policy] = tuple(self._score(memory, *sequence, temperature) for sequence in probe)
                run.append(job)
            except AdapterError as error:
                results[job.policy] = Refused.of(error)
            except ValueError as error:
                results[job.policy] = Refused(str(error), bad_input=True)
        results |= add(run, begun)
        for policy, probed in scores.items():
            if isinstance(result := results[policy], GroupStats):
                results[policy] = replace(result, scores=probed)
        return tuple(results[job.policy] for job in jobs)

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
            stats = self._gradients([(m, job.groups) for m, job in zip(memories, jobs, strict=True)])
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
        seconds = (perf_counter() - begun) / len(work)
        return tuple(together(parts, seconds) for parts in zip(*stats, strict=True))

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


def shares(work: Sequence[Sequence[TrainGroup]], replicas: int, worth: int) -> list[list[PolicyGroups]]:
    """For each replica and policy its groups, in order.

    The largest groups are assigned first. Below ``worth`` tokens per replica, the first computes everything.
    """
    sizes = {
        (policy, place): sum(len(sequence.tokens) for sequence in group.sequences)
        for policy, groups in enumerate(work)
        for place, group in enumerate(groups)
    }
    loads, owner = [0] * (replicas if sum(sizes.values()) >= worth * replicas else 1), {}
    for key in sorted(sizes, key=lambda key: -sizes[key]):
        owner[key] = loads.index(min(loads))
        loads[owner[key]] += sizes[key]
    return [
        [
            tuple(group for place, group in enumerate(groups) if owner[policy, place] == replica)
            for policy, groups in enumerate(work)
        ]
        for replica in range(replicas)
    ]


def together(stats: Sequence[GroupStats], seconds: float) -> GroupStats:
    """The sum of the statistics of a policy's parts, in order, so that it repeats."""
    sums = ("tokens", "loss", "entropy", "clipped", "gap_sum", "kl", "measured")
    return GroupStats(
        **{name: sum(getattr(part, name) for part in stats) for name in sums},
        gap_max=max(part.gap_max for part in stats),
        seconds=seconds,
        weights={number: weights for part in stats for number, weights in part.weights.items()},
    )
