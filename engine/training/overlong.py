"""What becomes of episodes that the length limit ended: kept as they are, left out, or charged for.

An agent's trajectories in one episode flow in; whether they are trained on, and what is taken off their reward, flows
out. Pure; knows nothing of groups and tensors. Source: DAPO, arXiv 2503.14476, section 3.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..trajectories import Trajectory


@dataclass(frozen=True)
class Overlong:
    """How a task treats them.

    ``mask`` is DAPO's overlong filtering: a cut-off episode has no loss, because its reward says how long it was, not
    how sound its reasoning. For the same reason its reward is no part of the baseline here. (The paper does not say;
    TRL counts it.) Counted, it would be a zero without a counterweight: a group whose finished members were all right
    would push every one of them up, and the policy towards certainty.

    ``penalty`` is DAPO's soft punishment (equation 13): nothing while at least ``buffer`` tokens are left, then a
    straight line down to −1 where none is left.
    """

    how: str = "keep"
    """keep, mask or penalty"""
    buffer: int = 0
    """With ``penalty``: tokens before the limit over which the reward falls by up to 1."""
    max_tokens: int = 0
    """The limit of one turn."""
    max_episode_tokens: int = 0
    """The limit of all turns of an agent."""

    def leaves_out(self, own: Sequence[Trajectory]) -> bool:
        """Whether an agent's episode carries no loss."""
        return self.how == "mask" and any(trajectory.cut for trajectory in own)

    def penalty(self, own: Sequence[Trajectory]) -> float:
        """What is added to the reward of an agent's episode: from −1 to 0."""
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
"""Cut-off episodes are like any other."""
