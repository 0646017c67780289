"""What becomes of episodes that the length limit ended: kept as they are, left out, or given a penalty.

Pure; knows nothing of groups and tensors. Source: DAPO, arXiv 2503.14476, section 3.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..trajectories import Trajectory


@dataclass(frozen=True)
class Overlong:
    """How a task treats overlong episodes.

    ``mask`` is DAPO's overlong filtering: a cut-off episode has no loss, because its reward tells how long it was, not
    how good its reasoning. For the same reason its reward is not part of the baseline here. (The paper does not say;
    TRL counts it.) If it counted, it would lower the baseline without a loss of its own: in a group whose finished
    members were all right, all of these would be reinforced, and the policy would lose entropy.

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
        """The penalty that is added to the reward of an agent's episode: from −1 to 0."""
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
"""Cut-off episodes are treated like all others."""
