"""Which replica computes which sequences of a call: as many tokens for each as can be. Pure.

Groups of each policy flow in, the same groups come out for each replica, with some of their sequences or left out.
Sequences of a group are neighbours on a replica as far as the balance allows, for there they share their prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .protocol import GroupStats, LogWeights, TrainGroup

PolicyGroups = tuple[TrainGroup, ...]
"""Of one policy."""


@dataclass(frozen=True)
class _Run:
    """Neighbouring sequences of a group."""

    policy: int
    group: int
    begin: int
    end: int
    tokens: int


def shares(work: Sequence[Sequence[TrainGroup]], replicas: int, worth: int) -> tuple[tuple[PolicyGroups, ...], ...]:
    """For each replica and policy its groups, in order.

    The largest runs of sequences go first, each to who has least, the first of those. Below ``worth`` tokens for each
    replica the first computes everything.
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
    """Groups, those of more than ``most`` tokens cut by sequences."""
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
    """What one pass over a policy's ``groups`` would have measured, from those over its parts, which took ``seconds``.

    The first part adds up first, so that the sums are the same each time.
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
    )


def _weights(
    groups: Sequence[TrainGroup], parts: Sequence[tuple[Sequence[TrainGroup], GroupStats]]
) -> dict[int, LogWeights]:
    """Of those groups whose sequences all went through a pass."""
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
