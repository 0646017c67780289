"""Forward and backward passes over groups, and forward passes alone: brings model and loss together.

A group's gradient is added to that of its policy. Knows nothing of optimizers and files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from ..trajectories import Logprobs, Tokens
from .advantages import has_signal
from .group_check import check_group, fault_of
from .inputs import TrainGroup, TrainSequence
from .memory.policy_memory import PolicyMemory
from .model import B, Lesson, Model, Slopes, count_trained
from .policy_loss import ImportanceNotes, PolicyLoss
from .probing import ProbeNotes, is_probe, probe_group, taught
from .protocol import GroupStats, Probe

Work = Sequence[tuple[PolicyMemory, Sequence[TrainGroup]]]
"""Different policies, each with groups of its own, of which the last may be a probe (``probing``)."""
Gradients = Callable[[Work], tuple[GroupStats, ...]]
"""Adds the gradients of groups to those of their policies: ``add_gradients`` with one model or with several."""


def add_gradient(model: Model[B], memory: PolicyMemory, groups: Sequence[TrainGroup]) -> GroupStats:
    """``add_gradients`` for one policy."""
    return add_gradients(model, [(memory, groups)])[0]


def add_gradients(model: Model[B], work: Work) -> tuple[GroupStats, ...]:
    """Add the gradients of groups (checked before) to those of their policies and return the statistics of each.

    Policies share passes where the model ``mixes``. A loss that is not finite becomes the ``fault`` of its policy, and
    goes no further.
    """
    if len(work) > 1 and not model.mixes:
        return tuple(stats for one in work for stats in add_gradients(model, [one]))
    begun = perf_counter()
    policies = [memory for memory, _ in work]
    losses = [PolicyLoss(memory.config) for memory in policies]
    notes = [(ImportanceNotes(), ProbeNotes()) for _ in policies]
    temperatures = tuple(memory.config.temperature for memory in policies)
    model.mount(policies)
    for batch in model.batches([[g for g in groups if is_probe(g) or has_signal(g, m.config)] for m, groups in work]):
        base = _references(model, policies, batch, temperatures)
        model.differentiate(batch, temperatures, partial(_gradient, policies, losses, notes, batch.lessons, base))
    tokens = [sum(count_trained(group) for group in groups if not is_probe(group)) for _, groups in work]
    for memory, count in zip(policies, tokens, strict=True):
        memory.tokens += count
    seconds = perf_counter() - begun
    return tuple(
        GroupStats(
            tokens=count,
            loss=loss.loss,
            entropy=loss.entropy,
            clipped=loss.clipped,
            gap_sum=loss.gap_sum,
            gap_max=loss.gap_max,
            kl=loss.kl,
            seconds=seconds * (count / sum(tokens) if sum(tokens) else 1 / len(work)),
            measured=loss.measured,
            weights=weights.of(groups),
            scores=scores.of(groups),
        )
        for loss, (weights, scores), count, (_, groups) in zip(losses, notes, tokens, work, strict=True)
    )


def _references(
    model: Model[B], policies: Sequence[PolicyMemory], batch: B, temperatures: tuple[float, ...]
) -> Tensor | None:
    """Log-probabilities (N,) by what each policy's KL term pulls to, the base or an adapter; None without a KL term."""
    pulled = [lesson for lesson in batch.lessons if policies[lesson.policy].config.kl > 0.0]
    starts = [lesson for lesson in pulled if policies[lesson.policy].reference is not None]
    if not pulled:
        return None
    base = model.logprobs(batch, temperatures, adapted=False) if len(starts) < len(pulled) else None
    if not starts:
        return base
    model.mount([policy.reference or policy for policy in policies])
    started = model.logprobs(batch, temperatures)
    model.mount(policies)
    if base is None:
        return started
    for lesson in starts:
        base[lesson.tokens] = started[lesson.tokens]
    return base


def _gradient(
    policies: Sequence[PolicyMemory],
    losses: Sequence[PolicyLoss],
    notes: Sequence[tuple[ImportanceNotes, ProbeNotes]],
    lessons: Sequence[Lesson],
    base: Tensor | None,
    logp: Tensor,
    entropy: Tensor,
) -> Slopes:
    """The gradient of each policy's loss by its tokens' ``logp`` and ``entropy``; these and ``base`` are (N,).

    ``base`` are the log-probabilities by what the KL terms pull to.
    """
    result = torch.zeros_like(logp)
    bonus = any(policies[lesson.policy].config.entropy > 0.0 for lesson in lessons)
    by_entropy = torch.zeros_like(entropy) if bonus else None
    for whole in lessons:
        weights, scores = notes[whole.policy]
        scores.note(whole, logp[whole.tokens].detach())
        lesson = taught(whole)
        if lesson is None:
            continue
        memory, own = policies[lesson.policy], lesson.tokens
        by_base = base[own] if base is not None and memory.config.kl > 0.0 else None
        values = logp[own].detach()
        slopes = losses[lesson.policy].gradient(lesson.trained, by_base, values, entropy[own])
        fault = fault_of(lesson, values.detach(), slopes.logp)
        if fault:
            memory.fault = memory.fault or fault
            continue
        result[own] = slopes.logp
        if by_entropy is not None and slopes.entropy is not None:
            by_entropy[own] = slopes.entropy
        weights.note(lesson, values.detach())
        if memory.config.epochs > 1 and lesson.trained.proximal is None:
            memory.rehearsal += _noted(lesson, values.detach())
    return Slopes(result, by_entropy)


def _noted(lesson: Lesson, logp: Tensor) -> list[TrainGroup]:
    """The lesson's groups with the log-probabilities of this pass as ``proximal``, for later epochs."""
    parts = np.split(logp.cpu().numpy(), np.flatnonzero(np.diff(lesson.trained.sequence)) + 1)
    noted: dict[int, list[TrainSequence]] = {}
    for number, sequence, part in zip(lesson.groups, lesson.sequences, parts, strict=True):
        proximal = np.zeros(len(sequence.tokens), dtype=np.float32)
        proximal[sequence.mask != 0] = part
        noted.setdefault(number, []).append(replace(sequence, proximal=proximal))
    return [TrainGroup(number, tuple(sequences)) for number, sequences in noted.items()]


def sequence_logprobs(
    model: Model[B], memory: PolicyMemory, tokens: Tokens, start: int, temperature: float
) -> Logprobs:
    """Log-probabilities, float32 (T-start,), of ``tokens[start:]``; raises ``ValueError`` on bad input."""
    group = probe_group(Probe(((tokens, start),)))
    if not temperature > 0.0:
        raise ValueError(f"The temperature is {temperature}, but must be above 0.")
    check_group(group, model.vocabulary)
    model.mount([memory])
    scored = [model.logprobs(batch, (temperature,)).cpu().numpy() for batch in model.batches([[group]])]
    return np.concatenate(scored) if scored else np.zeros(0, dtype=np.float32)
