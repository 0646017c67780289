"""Advantages compare an episode, or a turn of it, with its group."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from ..spec.losses import AdvantageKind
from ..trajectories import Episode, Group, Trajectory
from .protocol import Advantages, LogWeights, PolicyConfig, TrainGroup, TrainSequence


def has_signal(group: TrainGroup, config: PolicyConfig) -> bool:
    """True if the group's gradient can differ from zero: a sampled token has an advantage, or a term of its own."""
    return config.kl > 0.0 or config.entropy > 0.0 or any(map(_pulls, group.sequences))


def _pulls(sequence: TrainSequence) -> bool:
    if sequence.advantages is None:
        return sequence.advantage != 0.0
    return bool(sequence.advantages[sequence.mask != 0].any())


def pass_tokens(groups: Iterable[TrainGroup], config: PolicyConfig) -> int:
    """Tokens of a pass; a group's shared prompt counts once."""
    tokens = 0
    for group in groups:
        if has_signal(group, config):
            prompts = {sequence.tokens[: int(np.argmax(sequence.mask))].tobytes() for sequence in group.sequences}
            shared = int(np.argmax(group.sequences[0].mask)) if len(prompts) == 1 else 0
            tokens += sum(len(sequence.tokens) - shared for sequence in group.sequences) + shared
    return tokens


# GRPO's process supervision (arXiv 2402.03300, section 4.1.3) normalises single rewards over the group's steps. Here
# *returns to go* are compared turn by turn: any ``AdvantageKind`` works, and late rewards are not mixed with early
# ones.


@dataclass(frozen=True)
class Credit:
    """Each turn gets its own advantage."""

    discount: float = 1.0
    """Per later turn, 0 to 1."""


def payments_by_turn(episode: Episode, agent: str) -> list[float]:
    """Payments after each reply of an agent's own conversation; at least one entry.

    Payments before its first reply count with the first, those after an ask without room for a reply with the last.
    """
    replies = sum(not span.fork for t in episode.trajectories if t.agent == agent for span in t.spans)
    sums = [0.0] * max(1, replies)
    for payment in episode.paid:
        if payment.agent == agent:
            sums[min(max(payment.turns, 1), len(sums)) - 1] += payment.amount
    return sums


def returns_to_go(reward: float, payments: Sequence[float], discount: float) -> list[float]:
    """Discounted sum of payments after each turn, with the final reward.

    ``reward``: of the episode; ``payments``: after each turn. Without a discount the first is ``reward``, to the last
    bit.
    """
    before = [0.0, *accumulate(payments[:-1])]
    returns = [reward - paid for paid in before]
    if discount != 1.0:
        for turn in range(len(payments) - 2, -1, -1):
            returns[turn] = payments[turn] + discount * returns[turn + 1]
    return returns


def compare_turns(
    returns: Sequence[Sequence[float]], compare: Callable[[Sequence[float]], Sequence[float]]
) -> list[list[float]]:
    """Advantages of turns, compared by turn number.

    ``compare`` gets all samples' returns, of ended ones their last.
    """
    advantages: list[list[float]] = [[] for _ in returns]
    for turn in range(max(map(len, returns), default=0)):
        compared = compare([own[min(turn, len(own) - 1)] for own in returns])
        for own, values, advantage in zip(advantages, returns, compared, strict=True):
            if turn < len(values):
                own.append(advantage)
    return advantages


@dataclass(frozen=True)
class Overlong:
    """Cut off episodes are kept, left out, or penalised (DAPO, arXiv 2503.14476, section 3.4).

    ``mask``: no loss, because the reward reflects the length, and no part in the baseline (TRL counts it): else a group
    with only right finished samples would reinforce all, and lose entropy.

    ``penalty`` (equation 13): linear over the last ``buffer`` tokens, down to −1.
    """

    how: str = "keep"
    buffer: int = 0
    """Tokens before the limit with a penalty."""
    max_tokens: int = 0
    max_episode_tokens: int = 0

    def leaves_out(self, own: Sequence[Trajectory]) -> bool:
        return self.how == "mask" and any(trajectory.cut for trajectory in own)

    def penalty(self, own: Sequence[Trajectory]) -> float:
        if self.how != "penalty":
            return 0.0
        if any(trajectory.cut for trajectory in own):
            return -1.0
        sampled = sum(int(np.count_nonzero(trajectory.mask)) for trajectory in own)
        spans = [span for trajectory in own for span in trajectory.spans]
        last = spans[-1].stop - spans[-1].start if spans else 0
        room = min(self.max_episode_tokens - sampled, self.max_tokens - last)
        return min(0.0, room / self.buffer - 1.0)


KEEP = Overlong()


DEVIATION_FLOOR = 1e-4
"""Added to a deviation: tiny differences must not be blown up."""
MIN_REWARDED = 2
"""A single reward is its own mean."""


@dataclass(frozen=True)
class RewardSummary:
    """A closed group's rewards."""

    count: int
    mean: float
    spread: float
    """Population standard deviation."""
    constant: bool
    """True if every advantage is zero."""
    least: float
    most: float


NOTHING = RewardSummary(0, 0.0, 0.0, True, 0.0, 0.0)


@dataclass(frozen=True)
class ClosedGroup:
    """A trainable group with its advantages."""

    group: Group
    rewards: RewardSummary


@dataclass(frozen=True)
class TooFewRewards:
    """An untrainable group: its number is filled again."""

    rewarded: int


@dataclass(frozen=True)
class ClosingRules:
    """A task's rules for rewards and advantages."""

    advantage: AdvantageKind = "mean"
    overlong: Overlong = KEEP
    credit: Credit | None = None
    """None: the episode's advantage."""
    min_members: int = MIN_REWARDED
    """Episodes with status ok."""


PLAIN = ClosingRules()


def group_advantages(rewards: Sequence[float], kind: AdvantageKind = "mean") -> NDArray[np.float64]:
    """Advantage of each reward, float64 (n,).

    - ``mean``: reward − mean (Dr.GRPO, arXiv 2503.20783, section 3.2).
    - ``standard``: that, divided by the sample standard deviation (GRPO, arXiv 2402.03300, section 4.1.2; plus 1e-4,
      as in TRL).
    - ``leave_one_out``: reward − mean of the others (RLOO, arXiv 2402.14740, equation 7).

    Equal rewards give exact zeros. Raises ``ValueError`` if one is not finite.
    """
    _check(rewards)
    values = np.array(rewards, dtype=np.float64)
    if not len(rewards) or min(rewards) == max(rewards):
        return np.zeros_like(values)
    centred: NDArray[np.float64] = values - values.mean()
    if kind == "standard":
        centred /= values.std(ddof=1) + DEVIATION_FLOOR
    if kind == "leave_one_out":
        centred *= values.size / (values.size - 1)  # r − (S − r)/(n − 1) = (r − S/n) · n/(n − 1)
    return centred


def close_group(group: Group, rules: ClosingRules = PLAIN) -> ClosedGroup | TooFewRewards:
    """Fix the advantages, per agent name; without a reward: 0.

    A demonstration's advantage is its reward: its weight in the loss. One is enough for a group.

    An agent's baseline covers its rewarded episodes; several of its trajectories count with their mean. Each trajectory
    has the full advantage, since a sampled token is marked in exactly one. Masked overlong episodes keep 0.

    With ``ClosingRules.credit`` each reply has an advantage (``Span.advantage``), except in forks without a name.
    ``TooFewRewards`` if fewer than ``rules.min_members`` episodes have status ok, or fewer than two a reward.

    Raises ``ValueError`` if a reward is not finite.
    """
    if not group.episodes:
        return ClosedGroup(group, NOTHING)
    rewarded = sum(any(t.reward is not None for t in episode.trajectories) for episode in group.episodes)
    finished = sum(episode.status == "ok" for episode in group.episodes)
    if (finished < rules.min_members or rewarded < MIN_REWARDED) and not demonstrates(group.episodes):
        return TooFewRewards(rewarded)
    episodes = list(group.episodes)
    for agent in sorted({t.agent for episode in episodes for t in episode.trajectories}):
        scores = _scores(group.episodes, agent, rules)
        given = {place for place in scores if any(t.given for t in episodes[place].trajectories if t.agent == agent)}
        compared = {place: score for place, score in scores.items() if place not in given}
        advantages = group_advantages(list(compared.values()), rules.advantage).tolist()
        overall = {place: scores[place] for place in given} | dict(zip(compared, advantages, strict=True))
        turns = {} if rules.credit is None else _turn_advantages(group.episodes, agent, compared, rules, rules.credit)
        for place, episode in enumerate(episodes):
            episodes[place] = _with_advantages(episode, agent, overall.get(place, 0.0), turns.get(place, ()))
    closed = replace(group, episodes=tuple(episodes))
    return ClosedGroup(closed, _summary(closed))


def demonstrates(episodes: Iterable[Episode]) -> bool:
    """True if an episode shows what is to be learned, so that nothing need be compared with it."""
    return any(t.given and t.reward is not None for episode in episodes for t in episode.trajectories)


def _scores(episodes: Sequence[Episode], agent: str, rules: ClosingRules) -> dict[int, float]:
    scores: dict[int, float] = {}
    for place, episode in enumerate(episodes):
        own = [t for t in episode.trajectories if t.agent == agent]
        rewards = [t.reward for t in own if t.reward is not None]
        if rewards and not rules.overlong.leaves_out(own):
            scores[place] = _mean(rewards) + rules.overlong.penalty(own)
    return scores


def _turn_advantages(
    episodes: Sequence[Episode], agent: str, scores: Mapping[int, float], rules: ClosingRules, credit: Credit
) -> dict[int, list[float]]:
    returns = [
        returns_to_go(score, payments_by_turn(episodes[place], agent), credit.discount)
        for place, score in scores.items()
    ]
    compared = compare_turns(returns, lambda values: group_advantages(values, rules.advantage).tolist())
    return dict(zip(scores, compared, strict=True))


def _with_advantages(episode: Episode, agent: str, overall: float, turns: Sequence[float]) -> Episode:
    own = iter(turns)
    trajectories = []
    for trajectory in episode.trajectories:
        if trajectory.agent != agent:
            trajectories.append(trajectory)
            continue
        spans = trajectory.spans
        if turns or any(span.advantage is not None for span in spans):
            spans = tuple(replace(span, advantage=None if span.fork else next(own, None)) for span in spans)
        advantage = 0.0 if trajectory.reward is None else overall
        trajectories.append(trajectory.judged(advantage, spans))
    return episode.having(tuple(trajectories))


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    _check(listed)
    return listed[0] if min(listed) == max(listed) else math.fsum(listed) / len(listed)


def _check(rewards: Sequence[float]) -> None:
    if not all(map(math.isfinite, rewards)):
        raise ValueError(f"Rewards must be finite numbers, not {list(rewards)}.")


def _advantages(trajectory: Trajectory) -> list[float]:
    replies = [trajectory.advantage if span.advantage is None else span.advantage for span in trajectory.spans]
    return replies or [trajectory.advantage]


def _summary(group: Group) -> RewardSummary:
    rewards: list[float] = []
    constant = True
    for episode in group.episodes:
        by_agent: dict[str, list[float]] = {}
        for trajectory in episode.trajectories:
            if trajectory.reward is not None:
                by_agent.setdefault(trajectory.agent, []).append(trajectory.reward)
                constant = constant and not any(_advantages(trajectory))
        rewards += [_mean(own) for own in by_agent.values()]
    values = np.array(rewards, dtype=np.float64)
    mean, spread = float(values.mean()), float(values.std())
    return RewardSummary(len(rewards), mean, spread, constant, min(rewards), max(rewards))


def train_group(group: Group, overlong: Overlong = KEEP) -> TrainGroup:
    """Trainable trajectories: with a reward and a sampled token.

    In the group's order, so that sums of gradients repeat.
    """
    return TrainGroup(
        group.number,
        tuple(sequence for episode in group.episodes for sequence in _sequences(episode, overlong)),
    )


def spread(group: Group, trained: TrainGroup, weights: LogWeights) -> LogWeights:
    """Spread weights of ``trained`` over all trajectories.

    float16, one per sampled token; NaN if not trained on.
    """
    trajectories = [trajectory for episode in group.episodes for trajectory in episode.trajectories]
    if [id(t.tokens) for t in trajectories] == [id(sequence.tokens) for sequence in trained.sequences]:
        return weights
    stops = np.cumsum([np.count_nonzero(sequence.mask) for sequence in trained.sequences])
    own = dict(zip([id(s.tokens) for s in trained.sequences], np.split(weights, stops[:-1]), strict=True))
    untrained = [np.full(t.sampled, np.nan, np.float16) for t in trajectories]
    return np.concatenate([own.get(id(t.tokens), none) for t, none in zip(trajectories, untrained, strict=True)])


def _sequences(episode: Episode, overlong: Overlong) -> list[TrainSequence]:
    trained = [t for t in episode.trajectories if _trainable(t) and not overlong.leaves_out((t,))]
    tokens: Counter[str] = Counter()
    for trajectory in trained:
        tokens[trajectory.agent] += trajectory.sampled
    return [
        TrainSequence(t.tokens, t.mask, t.logprobs, t.advantage, tokens[t.agent], advantages=_token_advantages(t))
        for t in trained
    ]


def _token_advantages(trajectory: Trajectory) -> Advantages | None:
    if all(span.advantage is None for span in trajectory.spans):
        return None
    result = np.zeros(len(trajectory.tokens), dtype=np.float32)
    for span in trajectory.spans:
        result[span.start : span.stop] = trajectory.advantage if span.advantage is None else span.advantage
    return result


def _trainable(trajectory: Trajectory) -> bool:
    return trajectory.reward is not None and trajectory.sampled > 0
