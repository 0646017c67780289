"""Makes the trainer's ``TrainGroup`` from a policy's closed group.

It has only trajectories with a reward and a sampled token, without overlong ones that the task leaves out.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from ..trajectories import Episode, Group, Trajectory
from .advantages import KEEP, Overlong
from .inputs import Advantages, TrainGroup, TrainSequence
from .protocol import LogWeights


def train_group(group: Group, overlong: Overlong = KEEP) -> TrainGroup:
    """Return the trainable part of a policy's ``group``, in the same order, so that sums of gradients repeat."""
    return TrainGroup(
        group.number,
        tuple(sequence for episode in group.episodes for sequence in _sequences(episode, overlong)),
    )


def spread(group: Group, trained: TrainGroup, weights: LogWeights) -> LogWeights:
    """Spread weights of the sequences of ``trained`` (at least one) over all trajectories of ``group``.

    float16, one for each token that a policy sampled, trajectory after trajectory; NaN in those not trained on.
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
        TrainSequence(t.tokens, t.mask, t.logprobs, t.advantage, tokens[t.agent], advantages=_advantages(t))
        for t in trained
    ]


def _advantages(trajectory: Trajectory) -> Advantages | None:
    if all(span.advantage is None for span in trajectory.spans):
        return None
    result = np.zeros(len(trajectory.tokens), dtype=np.float32)
    for span in trajectory.spans:
        result[span.start : span.stop] = trajectory.advantage if span.advantage is None else span.advantage
    return result


def _trainable(trajectory: Trajectory) -> bool:
    return trajectory.reward is not None and trajectory.sampled > 0
