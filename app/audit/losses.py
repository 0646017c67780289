"""The losses, written a second time from their papers and a task file's words, to check the engine's own.

Each takes the log-probabilities of one sequence's sampled tokens and gives its share of the sum that is to be
minimised.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .record import Task


@dataclass(frozen=True)
class Recipe:
    """What a task file says of the update, completed with the defaults that the loss was published with."""

    loss: str
    mean: str
    """Over what the step's values are averaged: constant, episode, sequence or token."""
    low: float
    high: float
    """Ratios are clipped below and above these."""
    dual: float
    """With a negative advantage a ratio counts as this much at most (Ye et al., arXiv 1912.09729)."""
    importance: str
    floor: float
    cap: float
    geometric: float
    """Bound of a sequence's geometric mean, and one over it."""
    kl: float
    entropy: float
    temperature: float
    episodes: int
    """Episodes of a step."""
    episode_tokens: int
    """Most tokens that an episode may have."""


MEANS = {"dr_grpo": "constant", "reinforce": "episode", "grpo": "sequence", "gspo": "sequence"}
"""Over what a loss is averaged, by its name; all others are averaged over the step's tokens."""
DUAL = 3.0
CLIPS = {"grpo": (0.2, 0.2), "dapo": (0.2, 0.28), "gspo": (3e-4, 4e-4), "ppo": (0.2, 0.2), "cispo": (1.0, 4.0)}


def recipe(task: Task) -> Recipe:
    """The recipe of one task."""
    loss = str(task.value("train", "loss"))
    low, high = CLIPS.get(loss, (1.0, float("inf")))
    return Recipe(
        loss=loss,
        mean=MEANS.get(loss, "token"),
        low=1.0 - float(task.value("train", "clip_low", low)),
        high=1.0 + float(task.value("train", "clip_high", high)),
        dual=float(task.value("train", "clip_dual", DUAL)),
        importance=str(task.value("train", "importance", "truncate")),
        floor=float(task.value("train", "importance_floor", 0.0)),
        cap=float(task.value("train", "importance_cap", 2.0)),
        geometric=float(task.value("train", "geometric_cap", 2.0)),
        kl=float(task.value("train", "kl", 0.0)),
        entropy=float(task.value("train", "entropy", 0.0)),
        temperature=float(task.value("sampling", "temperature")),
        episodes=task.batch * int(task.value("train", "group_size")),
        episode_tokens=int(task.value("sampling", "max_episode_tokens")),
    )


@dataclass(frozen=True)
class Sampled:
    """The sampled tokens of one sequence; every tensor has shape (N,)."""

    logp: Tensor
    """Log-probabilities under the policy that is updated, with a gradient."""
    entropy: Tensor
    """Entropies in nats of the distributions at these tokens, with a gradient."""
    behaviour: Tensor
    """Under the policy that sampled."""
    base: Tensor | None
    """Under the base; None without a KL term."""
    proximal: Tensor | None
    """Under the policy before the step's first update; None in that update."""
    advantage: Tensor
    episode: int
    """Sampled tokens of all sequences that the agent has in this episode."""


def loss(one: Sampled, made: Recipe, step_tokens: int) -> Tensor:
    """One sequence's part of the step's loss."""
    values = _values(one, made)
    if one.base is not None:
        apart = one.base - one.logp
        values = values + made.kl * (torch.exp(apart) - 1 - apart)  # k3, Schulman 2020
    if made.entropy:
        values = values - made.entropy * one.entropy
    divisor = {
        "constant": made.episodes * made.episode_tokens,
        "episode": made.episodes,
        "sequence": made.episodes * one.episode,
        "token": step_tokens,
    }[made.mean]
    return values.sum() / max(1, divisor)


def _values(one: Sampled, made: Recipe) -> Tensor:
    """The loss of each token, before the KL term."""
    now = one.logp.detach()
    if made.loss in ("dr_grpo", "reinforce"):
        return -_weight(now, one.behaviour, made) * one.advantage * one.logp
    if made.loss == "cispo":
        ratio = _ratio(now, one.behaviour)
        return -_kept(now - one.behaviour, made) * torch.clamp(ratio, max=made.high) * one.advantage * one.logp
    if made.loss in ("grpo", "dapo"):
        ratio = _ratio(one.logp, one.behaviour)
        return _kept(now - one.behaviour, made) * _clipped(ratio, one.advantage, made)
    if made.loss == "gspo":
        common = torch.exp(torch.clamp(now - one.behaviour, -20, 20).mean())
        ratio = common * torch.exp(one.logp - now)  # GSPO-token: the same where all are
        return _kept(now - one.behaviour, made) * _clipped(ratio, one.advantage, made)
    if made.loss == "ppo":
        proximal = now if one.proximal is None else one.proximal
        return _weight(proximal, one.behaviour, made) * _clipped(_ratio(one.logp, proximal), one.advantage, made)
    raise ValueError(f"The checker knows no loss {made.loss!r}.")


def _ratio(logp: Tensor, old: Tensor) -> Tensor:
    return torch.exp(torch.clamp(logp - old, -20, 20))


def _weight(logp: Tensor, behaviour: Tensor, made: Recipe) -> Tensor:
    apart = logp - behaviour
    if made.importance == "none":
        return torch.ones_like(apart)
    if made.importance in ("sequence_truncate", "sequence_mask"):
        weight = torch.exp(torch.clamp(apart.sum(), -20, 20)) * torch.ones_like(apart)
    else:
        weight = _ratio(logp, behaviour)
    return torch.clamp(weight, made.floor, made.cap) * _kept(apart, made)


def _kept(apart: Tensor, made: Recipe) -> Tensor:
    """1 where a token is trained on, 0 where a mask leaves it out; ``apart`` (N,) are its sequence's log-ratios."""
    measure = {"mask": apart, "sequence_mask": apart.sum(), "geometric_mask": apart.mean()}.get(made.importance)
    if measure is None:
        return torch.ones_like(apart)
    low, high = (1 / made.geometric, made.geometric) if made.importance == "geometric_mask" else (made.floor, made.cap)
    ratio = torch.exp(torch.clamp(measure, -20, 20))
    return ((ratio >= low) & (ratio <= high)).float() * torch.ones_like(apart)


def _clipped(ratio: Tensor, advantage: Tensor, made: Recipe) -> Tensor:
    objective = torch.minimum(ratio * advantage, torch.clamp(ratio, made.low, made.high) * advantage)
    return -torch.where(advantage < 0, torch.maximum(objective, made.dual * advantage), objective)
