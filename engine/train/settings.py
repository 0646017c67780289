"""A task file's training options for the stages, with the defaults of its loss filled in. Pure."""

from __future__ import annotations

from typing import cast

from ..spec import AdvantageKind, TaskSpec, as_number, constant_denominator, published
from ..training import ClosingRules, Credit, Overlong, PolicyConfig


def closing_rules(spec: TaskSpec) -> ClosingRules:
    """How the task's rewards become advantages."""
    train, sampling = spec.train, spec.sampling
    kind = published(train.loss).advantage if train.advantage == "auto" else cast(AdvantageKind, train.advantage)
    limits = as_number(sampling.max_tokens), as_number(sampling.max_episode_tokens)
    overlong = Overlong(train.overlong, train.overlong_buffer, *limits)
    credit = Credit(train.discount) if train.advantage_level == "turn" else None
    return ClosingRules(kind, overlong, credit, train.fewest_members)


def replacements(spec: TaskSpec) -> int:
    """How often a group number is filled again because all rewards are equal (DAPO, arXiv 2503.14476, section 3.2).

    Each number has its own allowance: with a common one the order of ends would decide, and runs would not repeat.
    """
    train = spec.train
    wanted = published(train.loss).dynamic_sampling if train.dynamic_sampling is None else train.dynamic_sampling
    return train.dynamic_limit if wanted else 0


def policy_config(spec: TaskSpec) -> PolicyConfig:
    """What the trainer needs to know of a task."""
    train, longest = spec.train, as_number(spec.sampling.max_episode_tokens)
    return PolicyConfig(
        rank=spec.policy.rank,
        alpha=spec.policy.alpha,
        loss=train.loss,
        learning_rate=as_number(train.learning_rate),
        schedule=train.schedule,
        warmup=train.warmup,
        steps=spec.steps,
        epochs=train.epochs,
        epsilon=train.epsilon,
        weight_decay=train.weight_decay,
        clip_norm=train.clip_norm,
        clip_low=train.clip_low,
        clip_high=train.clip_high,
        clip_dual=train.clip_dual,
        importance=train.importance,
        importance_cap=train.importance_cap,
        importance_floor=train.importance_floor,
        geometric_cap=train.geometric_cap,
        kl=train.kl,
        entropy=train.entropy,
        denominator=constant_denominator(train.loss, spec.group_episodes, longest),
        temperature=spec.sampling.temperature,
        seed=train.seed,
        repeats=train.deterministic,
    )
