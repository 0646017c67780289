"""One copy of the base on each device: the groups of a call are divided among them, and their gradients are added up.

Policies are on the first device, the primary. The other devices get a policy's weights for a call and return a
gradient; these are added in the order of devices, so that sums are the same each time. The update is that of one device
except for the last bits. Each copy computes in a thread of its own; all share one interpreter, so they launch kernels
in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
import torch

from ..trajectories import Logprobs, Tokens
from .group_pass import Work, add_gradients, sequence_logprobs
from .inputs import TrainGroup
from .memory.policy_memory import PolicyMemory
from .model import Model
from .out_of_memory import DeviceFull, on
from .probing import joined
from .protocol import GroupStats, LogWeights

R = TypeVar("R")
WORTH = 1024
"""The least tokens for each device with which dividing a call is worth the copies."""


@dataclass(frozen=True)
class Replica:
    """A copy of the base."""

    model: Model[Any]
    device: str
    name: str
    """The device's name for people."""
    thread: ThreadPoolExecutor | None = None
    """The thread that it computes in; None: the caller's."""


class Replicas:
    """Copies of the base, of which the first is the primary.

    ``make`` loads a model onto a device; ``threads`` is how many cores each may use.
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
        """The copy on the device that policies are on."""
        return self._all[0]

    def add_gradients(self, work: Work) -> tuple[GroupStats, ...]:
        """As ``group_pass.add_gradients``. Raises ``DeviceFull`` where a device has no memory for its part.

        After an error a policy's gradient may be incomplete.
        """
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
        """As ``group_pass.sequence_logprobs``, on the primary device; may also raise ``DeviceFull``."""
        primary = self.primary
        return on(primary.name, partial(sequence_logprobs, primary.model, memory, tokens, start, temperature))

    def unmount(self) -> None:
        """Forget which policies are mounted."""
        for replica in self._all:
            replica.model.unmount()

    def shrink(self) -> bool:
        """Halve the memory that the newest passes may take, on every device; False if all are smallest."""
        return any([replica.model.shrink() for replica in self._all])

    def shutdown(self) -> None:
        """End the threads."""
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
"""The groups of one policy."""


@dataclass(frozen=True)
class _Run:
    """Consecutive sequences of a group."""

    policy: int
    group: int
    begin: int
    end: int
    tokens: int


def shares(work: Sequence[Sequence[TrainGroup]], replicas: int, worth: int) -> tuple[tuple[PolicyGroups, ...], ...]:
    """For each replica and policy its groups, in order.

    The largest runs of sequences are assigned first, each to the replica with the least, the first of equals. Below
    ``worth`` tokens for each replica, the first computes everything.
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
    """Groups as runs; those of more than ``most`` tokens are divided by sequences."""
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
    """The statistics of a policy's ``groups`` from those of its parts, which took ``seconds``.

    Parts are added in order, so that the sums are the same each time.
    """
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
    """The importance weights of those groups whose sequences all went through a pass."""
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
