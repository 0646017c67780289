"""Passes of groups: losses, gradients, canary scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import AdapterError
from ..spec.losses import DPO, published
from ..trajectories import Logprobs, Tokens
from .advantages import has_signal
from .losses import LOG_RATIO_LIMIT, LOSSES, TokenView, kl_to_base
from .memory import AdamState, PolicyMemory, adamw, clip
from .model import B, Lesson, Model, Slopes, TrainedTokens, count_trained
from .protocol import GroupStats, LogWeights, PolicyConfig, TrainGroup, TrainSequence


def check_group(group: TrainGroup, vocabulary: int) -> None:
    """Raise ``ValueError``, with group and sequence, if a sequence is not trainable."""
    for number, sequence in enumerate(group.sequences):
        fault = _fault(sequence, vocabulary)
        if fault:
            raise ValueError(f"Sequence {number} of group {group.number} cannot be trained on: {fault}.")


def _fault(sequence: TrainSequence, vocabulary: int) -> str:
    tokens, mask, logprobs, advantages = sequence.tokens, sequence.mask, sequence.logprobs, sequence.advantages
    per_token = np.array(sequence.advantage) if advantages is None else advantages
    shapes = [mask.shape, logprobs.shape, per_token.shape if advantages is not None else tokens.shape]
    if tokens.size == 0:
        return "it is empty"
    if tokens.ndim != 1 or any(shape != tokens.shape for shape in shapes):
        return f"tokens have shape {tokens.shape}, but mask, log-probabilities and advantages have shapes {shapes}"
    if tokens.min() < 0 or tokens.max() >= vocabulary:
        return f"token ids run from {tokens.min()} to {tokens.max()}, the vocabulary from 0 to {vocabulary - 1}"
    given = np.isnan(logprobs[mask != 0]).all()  # a demonstration, which nobody sampled
    known = logprobs[mask == 0] if given else logprobs
    faults = {
        "its mask holds values other than 0 and 1": mask.max() > 1,
        "its first token is marked as sampled, but nothing precedes it": mask[0] != 0,
        f"its advantage is {sequence.advantage if advantages is None else 'not finite at a token'}": not np.isfinite(
            per_token
        ).all(),
        "a log-probability is positive or not finite": not ((known <= 1e-3) & np.isfinite(known)).all(),
    }
    return next((text for text, broken in faults.items() if broken), "")


def fault_of(lesson: Lesson, logp: Tensor, gradient: Tensor) -> str:
    """The first trained token not finite; empty: none. (N,) each."""
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


def by_sequence(lesson: Lesson, values: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    """The values (N,) of each sequence's trained tokens."""
    return np.split(values, np.flatnonzero(np.diff(lesson.trained.sequence)) + 1)


def log_weights(passed: Sequence[tuple[Lesson, Tensor]], groups: Iterable[TrainGroup]) -> dict[int, LogWeights]:
    """Importance weights by group, of lessons with their log-probabilities (N,)."""
    by_id: dict[int, LogWeights] = {}  # of sequences: batches hold them in any order
    for lesson, logp in passed:
        moved = np.nan_to_num(logp.cpu().numpy() - lesson.trained.behaviour)
        moved = np.clip(moved, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        parts = zip(lesson.sequences, by_sequence(lesson, moved), strict=True)
        by_id.update((id(sequence), part.astype(np.float16)) for sequence, part in parts)
    weights = {group.number: [by_id.get(id(sequence)) for sequence in group.sequences] for group in groups}
    return {
        number: np.concatenate(whole)
        for number, parts in weights.items()
        if len(whole := [part for part in parts if part is not None]) == len(parts) and whole
    }


@dataclass
class PolicyLoss:
    """Sums over trained tokens so far; named as in ``protocol.GroupStats``."""

    config: PolicyConfig
    bonus: float = 0.0
    """The weight of the entropy bonus."""
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
        """By ``logp`` and ``entropy``, undivided.

        All (N,). The entropy bonus takes weight × entropy off each token's loss (arXiv 1707.06347, equation 9). The KL
        term adds k3, or, in the reward, weight × (log pi_reference − log pi_behaviour) to each token's advantage (k1):
        then the policy gradient is that of the reverse KL of its own samples.
        """
        config = self.config
        behaviour, advantage, sequence, share = (
            torch.from_numpy(array).to(logp.device)
            for array in (trained.behaviour, trained.advantage, trained.sequence, trained.share)
        )
        behaviour = torch.where(behaviour.isnan(), logp.detach(), behaviour)  # nobody sampled a demonstration
        proximal = None if trained.proximal is None else torch.from_numpy(trained.proximal).to(logp.device)
        with torch.enable_grad():
            leaf = logp.detach().requires_grad_()
            if base is not None and config.kl_in_reward:
                advantage = config.rewards * advantage + config.kl * (base - behaviour)
            terms = LOSSES[config.loss](TokenView(leaf, behaviour, advantage, sequence, proximal), config)
            values = terms.values
            if base is not None:
                divergence = kl_to_base(leaf, base)
                values = values if config.kl_in_reward else values + config.kl * divergence
                self.kl += float(divergence.detach().sum())
            spread = entropy.detach().requires_grad_()
            if config.entropy > 0.0:
                values = values - self.bonus * spread
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


@dataclass
class Preferences:
    """Sums over the pairs of one call."""

    pairs: int = 0
    loss: float = 0.0
    margins: float = 0.0
    won: int = 0


def preferences(
    model: Model[B], memory: PolicyMemory, groups: Sequence[TrainGroup]
) -> tuple[list[TrainGroup], Preferences]:
    """Groups with DPO's derivative as advantages, and the loss (arXiv 2305.18290, equation 7).

    A sequence with a positive advantage is chosen, one with a negative rejected. With the margin
    m = β · (log π/π_ref of the chosen − that of the rejected), the loss is −log σ(m), and its derivative by the
    log-probability of each chosen token −β · σ(−m).
    """
    whole = TrainGroup(-1, tuple(sequence for group in groups for sequence in group.sequences))
    now = group_logprobs(model, memory, whole, 1.0)
    before = group_logprobs(model, memory.reference or memory, whole, 1.0, adapted=memory.reference is not None)
    ratios = iter([float((a.astype(np.float64) - b).sum()) for a, b in zip(now, before, strict=True)])
    weighed, sums, beta = [], Preferences(), memory.config.beta
    for group in groups:
        signs = [math.copysign(1.0, sequence.advantage) for sequence in group.sequences]
        margin = beta * math.fsum(sign * next(ratios) for sign in signs)
        pull = beta / (1.0 + math.exp(min(margin, LOG_RATIO_LIMIT)))
        pairs = zip(signs, group.sequences, strict=True)
        weighed.append(
            TrainGroup(group.number, tuple(replace(s, advantage=sign * pull, advantages=None) for sign, s in pairs))
        )
        if group.sequences:
            sums.pairs += 1
            sums.loss += math.log1p(math.exp(-abs(margin))) + max(0.0, -margin)
            sums.margins += margin
            sums.won += margin > 0.0
    return weighed, sums


Work = Sequence[tuple[PolicyMemory, Sequence[TrainGroup]]]
Gradients = Callable[[Work], tuple[GroupStats, ...]]


def add_gradients(model: Model[B], work: Work) -> tuple[GroupStats, ...]:
    """Add the gradients of checked groups; return their statistics.

    A loss that is not finite becomes the ``fault`` of its policy only.
    """
    begun = perf_counter()
    policies = [memory for memory, _ in work]
    compared = [
        preferences(model, memory, groups) if memory.config.loss == DPO else (groups, Preferences())
        for memory, groups in work
    ]
    work = [(memory, groups) for memory, (groups, _) in zip(policies, compared, strict=True)]
    losses = [PolicyLoss(memory.config, memory.bonus) for memory in policies]
    passed: list[list[tuple[Lesson, Tensor]]] = [[] for _ in policies]
    temperatures = tuple(memory.config.temperature for memory in policies)
    model.mount(policies)
    for batch in model.batches([[g for g in groups if has_signal(g, m.config)] for m, groups in work]):
        base = _references(model, policies, batch, temperatures)
        model.differentiate(batch, temperatures, partial(_gradient, policies, losses, passed, batch.lessons, base))
    tokens = [sum(map(count_trained, groups)) for _, groups in work]
    for memory, count, loss in zip(policies, tokens, losses, strict=True):
        memory.tokens += count
        memory.measure(loss.entropy, loss.measured)
    seconds = perf_counter() - begun
    return tuple(
        GroupStats(
            tokens=count,
            loss=pairs.loss if pairs.pairs else loss.loss,
            entropy=loss.entropy,
            clipped=loss.clipped,
            gap_sum=loss.gap_sum,
            gap_max=loss.gap_max,
            kl=loss.kl,
            seconds=seconds * (count / sum(tokens) if sum(tokens) else 1 / len(work)),
            measured=loss.measured,
            weights=log_weights(own, groups),
            pairs=pairs.pairs,
            margins=pairs.margins,
            won=pairs.won,
        )
        for loss, own, count, (groups, pairs) in zip(losses, passed, tokens, compared, strict=True)
    )


def _references(
    model: Model[B], policies: Sequence[PolicyMemory], batch: B, temperatures: tuple[float, ...]
) -> Tensor | None:
    """(N,) by the KL reference; None without a KL term."""
    pulled = [lesson for lesson in batch.lessons if policies[lesson.policy].config.kl > 0.0]
    if not pulled:
        return None
    result = torch.zeros(max(lesson.tokens.stop for lesson in batch.lessons))
    unknown = [lesson for lesson in pulled if lesson.trained.reference is None]
    starts = [lesson for lesson in unknown if policies[lesson.policy].reference is not None]
    if len(starts) < len(unknown):
        result = model.logprobs(batch, temperatures, adapted=False)
    if starts:
        model.mount([policy.reference or policy for policy in policies])
        by_start = model.logprobs(batch, temperatures)
        model.mount(policies)
        for lesson in starts:
            result[lesson.tokens] = by_start[lesson.tokens]
    for lesson in pulled:
        if lesson.trained.reference is not None:
            result[lesson.tokens] = torch.from_numpy(lesson.trained.reference)
    return result


def with_references(
    model: Model[B], teacher: Model[Any] | None, memory: PolicyMemory, groups: Sequence[TrainGroup]
) -> Sequence[TrainGroup]:
    """Groups with the log-probabilities of a ``teacher``, or of the KL reference behind another prompt.

    Others are returned as they are: the passes of their gradients ask the reference.
    """
    sequences = [sequence for group in groups for sequence in group.sequences]
    if memory.config.kl == 0.0 or (teacher is None and all(sequence.shown is None for sequence in sequences)):
        return groups
    read = TrainGroup(-1, tuple(map(_as_shown, sequences)))
    if teacher is not None:
        scores = group_logprobs(teacher, None, read, memory.config.temperature)
    else:
        reference = memory.reference
        scores = group_logprobs(model, reference or memory, read, memory.config.temperature, reference is not None)
    known = iter(scores)
    return [
        replace(group, sequences=tuple(replace(sequence, reference=next(known)) for sequence in group.sequences))
        for group in groups
    ]


def _as_shown(sequence: TrainSequence) -> TrainSequence:
    tokens, mask = sequence.shown or (sequence.tokens, sequence.mask)
    return TrainSequence(tokens, mask, np.zeros(len(tokens), np.float32), 0.0)


def _gradient(
    policies: Sequence[PolicyMemory],
    losses: Sequence[PolicyLoss],
    passed: Sequence[list[tuple[Lesson, Tensor]]],
    lessons: Sequence[Lesson],
    base: Tensor | None,
    logp: Tensor,
    entropy: Tensor,
) -> Slopes:
    result = torch.zeros_like(logp)
    bonus = any(policies[lesson.policy].config.entropy > 0.0 for lesson in lessons)
    by_entropy = torch.zeros_like(entropy) if bonus else None
    for lesson in lessons:
        memory, own = policies[lesson.policy], lesson.tokens
        by_base = base[own] if base is not None and memory.config.kl > 0.0 else None
        values = logp[own].detach()
        slopes = losses[lesson.policy].gradient(lesson.trained, by_base, values, entropy[own])
        fault = fault_of(lesson, values, slopes.logp)
        if fault:
            memory.fault = memory.fault or fault
            continue
        result[own] = slopes.logp
        if by_entropy is not None and slopes.entropy is not None:
            by_entropy[own] = slopes.entropy
        passed[lesson.policy].append((lesson, values))
        if memory.config.epochs > 1 and lesson.trained.proximal is None:
            memory.rehearsal += _noted(lesson, values)
    return Slopes(result, by_entropy)


def _noted(lesson: Lesson, logp: Tensor) -> list[TrainGroup]:
    noted: dict[int, list[TrainSequence]] = {}
    for number, sequence, part in zip(
        lesson.groups, lesson.sequences, by_sequence(lesson, logp.cpu().numpy()), strict=True
    ):
        proximal = np.zeros(len(sequence.tokens), dtype=np.float32)
        proximal[sequence.mask != 0] = part
        noted.setdefault(number, []).append(replace(sequence, proximal=proximal))
    return [TrainGroup(number, tuple(sequences)) for number, sequences in noted.items()]


def scored_group(sequences: Sequence[tuple[Tokens, int]]) -> TrainGroup:
    """The group to score. Raises ``ValueError`` on bad input."""
    group = []
    for tokens, start in sequences:
        if not 1 <= start <= len(tokens):
            raise ValueError(f"Scoring can start at 1 to {len(tokens)} in this sequence, not at {start}.")
        mask = (np.arange(len(tokens)) >= start).astype(np.uint8)
        group.append(TrainSequence(tokens, mask, np.zeros(len(tokens), dtype=np.float32), 0.0))
    return TrainGroup(-1, tuple(group))


def group_logprobs(
    model: Model[B], memory: PolicyMemory | None, group: TrainGroup, temperature: float, adapted: bool = True
) -> tuple[Logprobs, ...]:
    """Log-probabilities, float32, of marked tokens, in shared passes; by the base only unless ``adapted``.

    ``memory``: None for a model without adapters.
    """
    if not temperature > 0.0:
        raise ValueError(f"The temperature is {temperature}, but must be above 0.")
    check_group(group, model.vocabulary)
    if memory is not None:
        model.mount([memory])
    scores: dict[int, Logprobs] = {}
    for batch in model.batches([[group]]):
        logp = model.logprobs(batch, (temperature,), adapted and memory is not None).cpu().numpy()
        for lesson in batch.lessons:
            parts = by_sequence(lesson, logp[lesson.tokens])
            scores |= {id(own): part.copy() for own, part in zip(lesson.sequences, parts, strict=True)}
    return tuple(scores.get(id(own), np.zeros(0, dtype=np.float32)) for own in group.sequences)


# The sum of groups is divided once, so the update does not depend on their order. The learning rate rises over
# ``warmup`` steps, then is constant or falls: to 0 after step ``steps``, linearly or as half a cosine (arXiv
# 1608.03983, equation 5, without restarts), or as transformers' schedules of these names do.


@dataclass(frozen=True)
class Step:
    """A policy's state after a step, not yet adopted."""

    optimised: AdamState
    grad_norm: float
    """Before clipping; the largest of the step's updates."""
    divisor: float
    learning_rate: float


def make_step(gradients: Gradients, memory: PolicyMemory) -> Step:
    """Make the step's updates. A zero gradient changes nothing, not even their count.

    Further epochs repeat the passes at current weights. Raises ``AdapterError``, with the evidence, if a loss or
    gradient is not finite.
    """
    config = memory.config
    shared, rate = divisor(config, memory.tokens), learning_rate(config, memory.version)
    optimised, norm = _update(memory, memory.optimised, memory.gradient / shared, rate)
    for _ in range(1, config.epochs):
        ahead = PolicyMemory.of(config, memory.layout, optimised, version=memory.version)
        ahead.reference, ahead.entropy_bonus = memory.reference, memory.entropy_bonus
        gradients([(ahead, memory.rehearsal)])
        optimised, further = _update(ahead, optimised, ahead.gradient / shared, rate)
        norm = max(norm, further)
    return Step(optimised, norm, shared, rate)


def _update(memory: PolicyMemory, optimised: AdamState, gradient: Tensor, rate: float) -> tuple[AdamState, float]:
    config = memory.config
    gradient, norm = clip(gradient, config.clip_norm)
    if memory.fault or not np.isfinite(norm):
        raise AdapterError(
            f"The {'loss' if memory.fault else 'gradient'} is not finite, so step {memory.version + 1} was not made"
            f" ({memory.fault or f'its norm is {norm}, of {memory.tokens} trained tokens'}).",
            "A smaller learning rate usually helps; resume from the last committed step.",
        )
    if norm == 0.0:  # momentum and weight decay would still move the adapter, though nothing was learnt
        return optimised, norm
    return adamw(optimised, gradient, rate, config.betas, config.weight_decay, config.epsilon), norm


def divisor(config: PolicyConfig, tokens: int) -> float:
    """The divisor of ``tokens`` trained tokens, those without signal included."""
    return float(max(1, tokens)) if published(config.loss).mean == "token" else config.denominator


def learning_rate(config: PolicyConfig, step: int) -> float:
    """The rate of the step that makes version ``step + 1``.

    Step 1 of a warm-up over n steps has 1/n of the full rate, step n the full rate. The last step has a rate above 0.
    """
    if step < config.warmup:
        return config.learning_rate * (step + 1) / config.warmup
    past, whole = step - config.warmup, max(1, config.steps - config.warmup)
    return config.learning_rate * _left(config, past, min(1.0, past / whole), whole)


def _left(config: PolicyConfig, past: int, done: float, whole: int) -> float:
    """The share of the full rate, ``past`` steps after the warm-up of the ``whole`` ones after it."""
    cosine = 0.5 * (1.0 + math.cos(math.pi * done))
    match config.schedule:
        case "linear":
            return 1.0 - done
        case "cosine":
            return cosine
        case "cosine_with_min_lr":
            return config.min_rate + (1.0 - config.min_rate) * cosine
        case "inverse_sqrt":
            scale = config.warmup or INVERSE_SQRT
            return math.sqrt(scale / (past + scale))
        case "warmup_stable_decay":
            falling = max(0.0, past - (whole - config.decay)) / max(1, config.decay)
            return config.min_rate + (1.0 - config.min_rate) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, falling)))
    return 1.0


INVERSE_SQRT = 10_000
"""Steps without a warm-up after which the rate has fallen by the root of 2, as in transformers."""
