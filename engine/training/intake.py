"""From a closed group to what one policy's trainer sees of it.

Groups with advantages flow in, ``TrainGroup`` flows out: only the trajectories of that policy's agents, only those
that have a reward and a token of their own. Knows nothing of tensors.
"""

from __future__ import annotations

from collections.abc import Collection

from ..types import Group, Trajectory
from .protocol import TrainGroup, TrainSequence


def train_group(group: Group, agents: Collection[str] | None = None) -> TrainGroup:
    """Return the trainable part of ``group`` for the policy that plays ``agents`` (None: all of them).

    Order is that of members and of trajectories within them, so that gradients are summed in the same order each time.
    """
    return TrainGroup(
        group.number,
        tuple(
            TrainSequence(t.tokens, t.mask, t.logprobs, t.advantage)
            for episode in group.episodes
            for t in episode.trajectories
            if (agents is None or t.agent in agents) and _trainable(t)
        ),
    )


def _trainable(trajectory: Trajectory) -> bool:
    return trajectory.reward is not None and bool(trajectory.mask.any())
