"""The numbers behind ``auto``.

The engine replaces each ``auto`` once, before the first step, and keeps the number with the task.

The learning rate is ``0.08 / hidden_size · 32 / alpha``, at most ``5e-4 · 32 / alpha``:

- 1 / width: Adam's best rate for hidden matrices (Yang et al., "Tensor Programs V", arXiv 2203.03466, table 3).
  Measured for LoRA: an exponent of 0.78 for Llama (``get_lr`` of the Tinker cookbook).
- 0.08: 5e-4 on the shipped base (160 wide), 1.4e-4 at 576 (0.1 B), 8.9e-5 at 896 (0.5 B), 5.2e-5 at 1,536 (1.5 B),
  3.1e-5 at 2,560 (4 B), 2.2e-5 at 3,584 (7 B). Published: TRL 5e-5 for 0.6 B and 1e-5 for 3 B, the Tinker cookbook
  1e-5 to 1e-4 for 8 B, Unsloth 5e-6, verl 3e-6 for 3 B.
- alpha, not rank: weights change in proportion to alpha times the rate. With the factor 1 / rank the best rate does
  not depend on rank (Schulman et al., "LoRA Without Regret", 2025).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from .losses import SHOWN
from .task import SamplingSpec, TaskSpec
from .validation import AUTO, Auto

RATE_WIDTH = 0.08
"""Rate times width, at the default alpha."""
HIGHEST_RATE = 5e-4
"""The highest rate tried, at the default alpha."""
ALPHA = 32.0
NARROW = 256
"""Bases of at most this width write a few words: their limits need no measurement."""
SHORT, SHORT_EPISODE = 32, 256
"""Tokens of such a base."""
SMALL = 1024
"""Width of bases of 0.5 B parameters."""
LONG = {True: 256, False: 512}
"""Tokens of a reply without thinking, for these and wider bases; TRL has 256, recipes for short answers 256 to 1,024.
"""
THOUGHTFUL = 2048
"""With thinking."""
TURNS = 4
"""Such replies in an episode."""
ROUND = 32
"""Of limits."""
N = TypeVar("N", int, float)


@dataclass(frozen=True)
class BaseTraits:
    """What ``auto`` depends on."""

    width: int
    context: int
    thinks: bool = False
    switch: bool = False


@dataclass(frozen=True)
class FirstReplies:
    """Of the version that training begins from."""

    replies: tuple[int, ...]
    """Tokens of each; cut-off ones count as they are."""
    episodes: tuple[int, ...]
    """Tokens of one agent in one episode."""
    single: bool
    """No agent was asked twice or offered tools."""


def as_number(value: N | Auto) -> N:
    """Raises ``ValueError`` for ``auto``."""
    if isinstance(value, str):
        raise ValueError("'auto' was not replaced by a number.")
    return value


def for_talk(sampling: SamplingSpec) -> SamplingSpec:
    """Limits before the version's task begins."""
    most, whole = sampling.max_tokens, sampling.max_episode_tokens
    most = 256 if isinstance(most, str) else most
    return replace(sampling, max_tokens=most, max_episode_tokens=max(2048, most) if isinstance(whole, str) else whole)


def learning_rate(width: int, alpha: float) -> float:
    """For a base of this width, with two digits."""
    return float(f"{min(HIGHEST_RATE, RATE_WIDTH / width) * min(ALPHA / alpha, 100.0):.2g}")


def by_base(spec: TaskSpec, base: BaseTraits) -> TaskSpec:
    """Replace learning rates, thinking, and limits that need no measured replies."""
    sampling, train = spec.sampling, spec.train
    if sampling.thinking is None and base.thinks and base.switch:
        sampling = replace(sampling, thinking=False)
    if spec.kind == "eval":  # it trains nothing, and its limits are the highest
        return bounded(replace(spec, sampling=sampling), base)
    policies = {
        name: replace(own, learning_rate=learning_rate(base.width, own.lora_alpha))
        if own.trained and AUTO in (own.learning_rate, train.learning_rate if own.learning_rate is None else 0.0)
        else own
        for name, own in spec.policies.items()
    }
    if train.learning_rate == AUTO:
        train = replace(train, learning_rate=learning_rate(base.width, spec.policy.lora_alpha))
    spec = replace(spec, sampling=sampling, policies=policies, train=train)
    if spec.kind in SHOWN:  # nothing is sampled: a conversation may fill the context
        return _limited(spec, base.context, base.context)
    return bounded(spec, base) if base.width <= NARROW else spec


def unmeasured(spec: TaskSpec) -> bool:
    """True if first replies must be measured."""
    return AUTO in (spec.sampling.max_tokens, spec.sampling.max_episode_tokens)


def bounded(spec: TaskSpec, base: BaseTraits) -> TaskSpec:
    """The highest limits that ``auto`` may become."""
    if base.width <= NARROW:
        return _limited(spec, SHORT, SHORT_EPISODE)
    thinks = base.thinks and spec.sampling.thinking is not False and (spec.sampling.thinking or not base.switch)
    reply = min(THOUGHTFUL if thinks else LONG[base.width <= SMALL], max(ROUND, base.context // 2))
    reply = as_number(_limited(spec, reply, 0).sampling.max_tokens)
    return _limited(spec, reply, min(TURNS * reply, base.context))


def by_replies(spec: TaskSpec, base: BaseTraits, first: FirstReplies) -> TaskSpec:
    """Twice the 90th percentile of first replies, within the bounds.

    Episodes of several replies get twice the longest seen, and two whole replies at least.
    """
    bounds = bounded(spec, base).sampling
    if not first.replies:
        return bounded(spec, base)
    ordered = sorted(first.replies)
    reply = min(_rounded(2 * ordered[math.ceil(0.9 * len(ordered)) - 1]), as_number(bounds.max_tokens))
    given = as_number(_limited(spec, reply, 0).sampling.max_tokens)
    episode = 0 if first.single else max(2 * given, _rounded(2 * max(first.episodes)))
    return _limited(spec, reply, min(episode, as_number(bounds.max_episode_tokens)))


def _rounded(tokens: int) -> int:
    return max(1, math.ceil(tokens / ROUND)) * ROUND


def _limited(spec: TaskSpec, reply: int, episode: int) -> TaskSpec:
    """In agreement with the author's numbers and ``overlong_buffer``."""
    sampling = spec.sampling
    most, whole = sampling.max_tokens, sampling.max_episode_tokens
    if isinstance(most, str):
        most = max(reply, spec.train.overlong_buffer)
        most = most if isinstance(whole, str) else min(most, whole)
    whole = max(episode, most) if isinstance(whole, str) else whole
    return replace(spec, sampling=replace(sampling, max_tokens=most, max_episode_tokens=whole))


def replaced(before: TaskSpec, after: TaskSpec) -> dict[str, Any]:
    """Changed keys, dotted, with new values: train.learning_rate."""
    return dict(_replaced(before.to_json(), after.to_json(), ""))


def _replaced(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in after.items():
        if isinstance(value, Mapping):
            yield from _replaced(before[key], value, f"{prefix}{key}.")
        elif value != before[key]:
            yield prefix + key, value
