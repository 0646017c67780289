"""Forward and backward passes of groups through a model: losses, gradients, scores for the canary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from ..spec import published
from ..trajectories import Logprobs, Tokens
from .advantages import has_signal
from .inputs import PolicyConfig, TrainGroup, TrainSequence
from .losses import LOG_RATIO_LIMIT, LOSSES, TokenView, kl_to_base
from .memory.policy_memory import PolicyMemory
from .model import B, Lesson, Model, Slopes, TrainedTokens, count_trained, trained_tokens_of
from .protocol import GroupStats, LogWeights, Probe


def check_group(group: TrainGroup, vocabulary: int) -> None:
    """Raise ``ValueError``, naming group and sequence, unless every sequence can be trained on."""
    for number, sequence in enumerate(group.sequences):
        fault = _fault(sequence, vocabulary)
        if fault:
            raise ValueError(f"Sequence {number} of group {group.number} cannot be trained on: {fault}.")


def _fault(sequence: TrainSequence, vocabulary: int) -> str:
    tokens, mask, logprobs = sequence.tokens, sequence.mask, sequence.logprobs
    if not (tokens.ndim == 1 and tokens.shape == mask.shape == logprobs.shape):
        return f"tokens, mask and log-probabilities have shapes {tokens.shape}, {mask.shape} and {logprobs.shape}"
    if tokens.size == 0:
        return "it is empty"
    if tokens.min() < 0 or tokens.max() >= vocabulary:
        return f"token ids run from {tokens.min()} to {tokens.max()}, the vocabulary from 0 to {vocabulary - 1}"
    if mask.max() > 1:
        return "its mask holds values other than 0 and 1"
    if mask[0]:
        return "its first token is marked as sampled, but nothing precedes it"
    if not np.isfinite(sequence.advantage):
        return f"its advantage is {sequence.advantage}"
    if sequence.advantages is not None and sequence.advantages.shape != tokens.shape:
        return f"tokens have shape {tokens.shape}, their advantages {sequence.advantages.shape}"
    if sequence.advantages is not None and not np.isfinite(sequence.advantages).all():
        return "the advantage of a token is not finite"
    if not (logprobs <= 1e-3).all() or not np.isfinite(logprobs).all():
        return "a log-probability is positive or not finite"
    return ""


def fault_of(lesson: Lesson, logp: Tensor, gradient: Tensor) -> str:
    """Name the first trained token at which ``logp`` or ``gradient``, (N,) each, is not finite; empty if all are."""
    broken = ~(logp.isfinite() & gradient.isfinite())
    count = int(broken.sum())
    if not count:
        return ""
    first, trained = int(broken.nonzero()[0]), lesson.trained
    group = lesson.groups[int(trained.sequence[first])]
    return (
        f"{count} of {len(trained.targets)} tokens, the first of them in group {group}: token {trained.targets[first]} "
        f"has log-probability {float(logp[first]):.4g} (the sampler's: {trained.behaviour[first]:.4g}), advantage "
        f"{trained.advantage[first]:.4g} and gradient {float(gradient[first]):.4g}"
    )


# A probe rides as the last group of a policy's passes, at no extra pass. It is removed before the loss sees it.

PROBED = -1


def probe_group(probe: Probe) -> TrainGroup:
    """The group of a probe. Raises ``ValueError`` if scoring cannot begin at a sequence's ``start``."""
    return TrainGroup(PROBED, tuple(_sequence(tokens, start) for tokens, start in probe.sequences))


def is_probe(group: TrainGroup) -> bool:
    """True if a group is a probe."""
    return group.number == PROBED


def _sequence(tokens: Tokens, start: int) -> TrainSequence:
    if not 1 <= start <= len(tokens):
        raise ValueError(f"Scoring can start at 1 to {len(tokens)} in this sequence, not at {start}.")
    mask = np.zeros(len(tokens), dtype=np.uint8)
    mask[start:] = 1
    return TrainSequence(tokens, mask, np.zeros(len(tokens), dtype=np.float32), 0.0)


def taught(lesson: Lesson) -> Lesson | None:
    """A lesson without its probe, the last tokens; None if nothing is left."""
    count = sum(number != PROBED for number in lesson.groups)
    if count == len(lesson.groups):
        return lesson
    if not count:
        return None
    trained = trained_tokens_of(lesson.sequences[:count])
    tokens = slice(lesson.tokens.start, lesson.tokens.start + len(trained.targets))
    return replace(
        lesson, tokens=tokens, groups=lesson.groups[:count], sequences=lesson.sequences[:count], trained=trained
    )


class ProbeNotes:
    """Scores of a policy's probe over the batches of a pass."""

    def __init__(self) -> None:
        self._found: dict[int, Logprobs] = {}

    def note(self, lesson: Lesson, logp: Tensor) -> None:
        if PROBED not in lesson.groups:
            return
        parts = np.split(logp.numpy(), np.flatnonzero(np.diff(lesson.trained.sequence)) + 1)
        of = zip(lesson.groups, lesson.sequences, parts, strict=True)
        self._found.update((id(sequence), part.copy()) for number, sequence, part in of if number == PROBED)

    def of(self, groups: Iterable[TrainGroup]) -> tuple[Logprobs, ...]:
        return tuple(_scores(groups, self._found))


def _scores(groups: Iterable[TrainGroup], found: dict[int, Logprobs]) -> Iterator[Logprobs]:
    nothing = np.zeros(0, dtype=np.float32)
    for group in groups:
        if is_probe(group):
            yield from (found.get(id(sequence), nothing) for sequence in group.sequences)


def joined(
    groups: Sequence[TrainGroup], parts: Iterable[tuple[Sequence[TrainGroup], tuple[Logprobs, ...]]]
) -> tuple[Logprobs, ...]:
    """The scores of a policy's ``groups`` from those of its parts."""
    found: dict[int, Logprobs] = {}
    for own, scores in parts:
        sequences = (sequence for group in own if is_probe(group) for sequence in group.sequences)
        found.update((id(sequence), one) for sequence, one in zip(sequences, scores, strict=True))
    return tuple(_scores(groups, found))


class ImportanceNotes:
    """Importance weights over the batches of a pass."""

    def __init__(self) -> None:
        self._found: dict[int, LogWeights] = {}
        """By the sequence's ``id``: batches hold sequences in any order, and the groups keep them alive."""

    def note(self, lesson: Lesson, logp: Tensor) -> None:
        trained = lesson.trained
        moved = np.clip(logp.cpu().numpy() - trained.behaviour, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).astype(np.float16)
        parts = np.split(moved, np.flatnonzero(np.diff(trained.sequence)) + 1)
        self._found.update((id(s), part) for s, part in zip(lesson.sequences, parts, strict=True))

    def of(self, groups: Iterable[TrainGroup]) -> dict[int, LogWeights]:
        found = {group.number: [self._found.get(id(s)) for s in group.sequences] for group in groups}
        return {
            number: np.concatenate(whole)
            for number, parts in found.items()
            if len(whole := [part for part in parts if part is not None]) == len(parts) and whole
        }


@dataclass
class PolicyLoss:
    """Sums over the trained tokens of all batches so far; named as in ``protocol.GroupStats``."""

    config: PolicyConfig
    measured: int = 0
    loss: float = 0.0
    entropy: float = 0.0
    clipped: int = 0
    gap_sum: float = 0.0
    gap_max: float = 0.0
    kl: float = 0.0

    def gradient(
        self,
        trained: TrainedTokens,
        base: Tensor | None,
        logp: Tensor,
        entropy: Tensor,
    ) -> Slopes:
        """The gradient of this batch's part of the step's loss by ``logp`` and ``entropy``, not yet divided.

        All arguments are (N,). The entropy bonus takes weight × entropy off the loss of each token (arXiv 1707.06347,
        equation 9).
        """
        config = self.config
        behaviour, advantage, sequence, share = (
            torch.from_numpy(array).to(logp.device)
            for array in (trained.behaviour, trained.advantage, trained.sequence, trained.share)
        )
        proximal = None if trained.proximal is None else torch.from_numpy(trained.proximal).to(logp.device)
        with torch.enable_grad():
            leaf = logp.requires_grad_()
            terms = LOSSES[config.loss](TokenView(leaf, behaviour, advantage, sequence, proximal), config)
            values = terms.values
            if base is not None:
                divergence = kl_to_base(leaf, base)
                values = values + config.kl * divergence
                self.kl += float(divergence.detach().sum())
            spread = entropy.detach().requires_grad_()
            if config.entropy > 0.0:
                values = values - config.entropy * spread
            if published(config.loss).mean == "sequence":
                values = values * share
            loss = values.sum()
            gradient, by_entropy = torch.autograd.grad(loss, (leaf, spread), allow_unused=True)
        gap = (logp.detach() - behaviour).abs()
        self.measured += len(trained.targets)
        self.loss += float(loss.detach())
        self.entropy += float(entropy.sum())
        self.clipped += int(terms.clipped.sum())
        self.gap_sum += float(gap.sum())
        self.gap_max = max(self.gap_max, float(gap.max()))
        return Slopes(gradient, by_entropy)


Work = Sequence[tuple[PolicyMemory, Sequence[TrainGroup]]]
Gradients = Callable[[Work], tuple[GroupStats, ...]]


def add_gradient(model: Model[B], memory: PolicyMemory, groups: Sequence[TrainGroup]) -> GroupStats:
    """``add_gradients`` for one policy."""
    return add_gradients(model, [(memory, groups)])[0]


def add_gradients(model: Model[B], work: Work) -> tuple[GroupStats, ...]:
    """Add the gradients of groups (checked before) to those of their policies and return the statistics of each.

    Policies share passes if the model ``mixes``. A loss that is not finite becomes the ``fault`` of its policy only.
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
    """Log-probabilities (N,) by each policy's KL reference, the base or an adapter; None without a KL term."""
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
