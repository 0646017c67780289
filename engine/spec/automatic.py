"""What ``auto`` in a task file stands for: a learning rate by the base, limits by the base and its first replies. Pure.

The engine replaces each ``auto`` once, before the task's first step, and keeps the number with the task.

The learning rate is ``0.08 / hidden_size · 32 / alpha``, at most ``5e-4 · 32 / alpha``:

- 1 / width: the best learning rate of Adam for hidden matrices falls so (Yang et al., "Tensor Programs V", arXiv
  2203.03466, table 3). Measured for LoRA: an exponent of 0.78 for Llama (``get_lr`` of the Tinker cookbook).
- 0.08: 5e-4 on the shipped base (160 wide), with that its examples were tuned. 1.4e-4 at 576 wide (0.1 B), 8.9e-5 at
  896 (0.5 B), 5.2e-5 at 1,536 (1.5 B), 3.1e-5 at 2,560 (4 B), 2.2e-5 at 3,584 (7 B). Published recipes for LoRA by
  reinforcement learning lie around these: TRL 5e-5 for 0.6 B and 1e-5 for 3 B, the Tinker cookbook 1e-5 to 1e-4 for
  8 B, Unsloth 5e-6, verl 3e-6 for 3 B.
- alpha, and not rank: an update of the adapter changes the weights in proportion to alpha times the learning rate. With
  the factor 1 / rank the best learning rate does not depend on rank (Schulman et al., "LoRA Without Regret", 2025).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from .task import SamplingSpec, TaskSpec
from .validation import AUTO, Auto

RATE_WIDTH = 0.08
"""Learning rate times width, at the default alpha."""
HIGHEST_RATE = 5e-4
"""The highest learning rate that was tried, at the default alpha."""
ALPHA = 32.0
NARROW = 256
"""A base of at most this width writes a few words, as the shipped one does: its limits need no measurement."""
SHORT, SHORT_EPISODE = 32, 256
"""Tokens of a reply, and of an episode, of such a base."""
SMALL = 1024
"""The width of bases of half a billion parameters, that people train on processors."""
LONG = {True: 256, False: 512}
"""The most tokens of a reply where a base does not think, for these and for wider ones; TRL has 256 by default, recipes
for short answers 256 to 1,024."""
THOUGHTFUL = 2048
"""The same where it thinks."""
TURNS = 4
"""Replies of that length that an episode has room for at most."""
ROUND = 32
"""Limits are multiples of this."""
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
    """Replies of the version that training begins from."""

    replies: tuple[int, ...]
    """Tokens of each; of one that was cut off, those that it had."""
    episodes: tuple[int, ...]
    """Tokens of all replies of one agent in one episode, for each."""
    single: bool
    """Whether no agent was asked twice or offered tools: an episode is one reply."""


def as_number(value: N | Auto) -> N:
    """A value that is a number by now. Raises ``ValueError`` for ``auto``."""
    if isinstance(value, str):
        raise ValueError("'auto' was not replaced by a number.")
    return value


def for_talk(sampling: SamplingSpec) -> SamplingSpec:
    """Limits with which a version can be talked to whose task has not begun."""
    most, whole = sampling.max_tokens, sampling.max_episode_tokens
    most = 256 if isinstance(most, str) else most
    return replace(sampling, max_tokens=most, max_episode_tokens=max(2048, most) if isinstance(whole, str) else whole)


def learning_rate(width: int, alpha: float) -> float:
    """The learning rate of AdamW for a base of this width, with two digits; see the module for rule and sources."""
    return float(f"{min(HIGHEST_RATE, RATE_WIDTH / width) * min(ALPHA / alpha, 100.0):.2g}")


def by_base(spec: TaskSpec, base: BaseTraits) -> TaskSpec:
    """Replace what the base alone decides: learning rates and thinking; limits where replies need not be measured."""
    sampling, train = spec.sampling, spec.train
    if sampling.thinking is None and base.thinks and base.switch:
        sampling = replace(sampling, thinking=False)
    if spec.kind == "eval":  # it trains nothing, and its limits are the highest
        return bounded(replace(spec, sampling=sampling), base)
    policies = {
        name: replace(own, learning_rate=learning_rate(base.width, own.alpha))
        if own.trained and AUTO in (own.learning_rate, train.learning_rate if own.learning_rate is None else 0.0)
        else own
        for name, own in spec.policies.items()
    }
    if train.learning_rate == AUTO:
        train = replace(train, learning_rate=learning_rate(base.width, spec.policy.alpha))
    spec = replace(spec, sampling=sampling, policies=policies, train=train)
    return bounded(spec, base) if base.width <= NARROW else spec


def unmeasured(spec: TaskSpec) -> bool:
    """Whether a limit is still ``auto``, so that first replies have to be measured."""
    return AUTO in (spec.sampling.max_tokens, spec.sampling.max_episode_tokens)


def bounded(spec: TaskSpec, base: BaseTraits) -> TaskSpec:
    """The task with the highest limits that ``auto`` may become."""
    if base.width <= NARROW:
        return _limited(spec, SHORT, SHORT_EPISODE)
    thinks = base.thinks and spec.sampling.thinking is not False and (spec.sampling.thinking or not base.switch)
    reply = min(THOUGHTFUL if thinks else LONG[base.width <= SMALL], max(ROUND, base.context // 2))
    reply = as_number(_limited(spec, reply, 0).sampling.max_tokens)
    return _limited(spec, reply, min(TURNS * reply, base.context))


def by_replies(spec: TaskSpec, base: BaseTraits, first: FirstReplies) -> TaskSpec:
    """The task with limits by its first replies: twice the 90th percentile, within the bounds.

    An episode of one reply has no more than that; another has room for twice the longest that was seen, and for two
    whole replies at least.
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
    """Put numbers in place of ``auto``; they agree with those that the author set, and with ``overlong_buffer``."""
    sampling = spec.sampling
    most, whole = sampling.max_tokens, sampling.max_episode_tokens
    if isinstance(most, str):
        most = max(reply, spec.train.overlong_buffer)
        most = most if isinstance(whole, str) else min(most, whole)
    whole = max(episode, most) if isinstance(whole, str) else whole
    return replace(spec, sampling=replace(sampling, max_tokens=most, max_episode_tokens=whole))


def replaced(before: TaskSpec, after: TaskSpec) -> dict[str, Any]:
    """The keys of a task that have another value now, dotted, each with it: train.learning_rate."""
    return dict(_replaced(before.to_json(), after.to_json(), ""))


def _replaced(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in after.items():
        if isinstance(value, Mapping):
            yield from _replaced(before[key], value, f"{prefix}{key}.")
        elif value != before[key]:
            yield prefix + key, value
