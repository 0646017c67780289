"""A pool of a trained policy's earlier versions: which are in it, and which one plays next.

The files of the pool, and of those that play, stay on the disk (``retention``); a version is loaded into the sampler
when it plays.

Sampling opponents from the past, rather the young ones, keeps self-play from running in circles (Bansal et al., arXiv
1710.03748, section 4.2); that one among them be strong is the idea of prioritised fictitious self-play (Vinyals et al.,
Nature 575, 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set

import numpy as np

from ...errors import AdapterError
from ...rollout import noise_seed
from ...spec import NamedPolicySpec
from ...store import Version

HALF = 0.5
"""With ``pick = "recent"``, how often a version plays relative to the next younger one."""
SHARPNESS = 4.0
"""With ``pick = "score"``, a version that scores a quarter of the pool's range more plays e times as often."""


def in_pool(numbers: Sequence[int], policy: NamedPolicySpec) -> tuple[int, ...]:
    """Which of these versions are in a pool, oldest first: every ``every``-th, and of those the ``size`` youngest."""
    entered = sorted(number for number in numbers if number % policy.every == 0)
    return tuple(entered[-policy.size :])


def weights(numbers: Sequence[int], pick: str, scores: Mapping[int, float]) -> list[float]:
    """How often each of a pool's versions, oldest first, plays; they add up to 1.

    A version that was not measured counts as one of the pool's median score.
    """
    if pick == "recent":
        raw = [HALF**age for age in range(len(numbers) - 1, -1, -1)]
    elif pick == "score" and scores:
        known = [scores[number] for number in numbers if number in scores] or [0.0]
        least, width = min(known), (max(known) - min(known)) or 1.0
        middle = float(np.median(known))
        raw = [float(np.exp(SHARPNESS * (scores.get(number, middle) - least) / width)) for number in numbers]
    else:
        raw = [1.0] * len(numbers)
    total = sum(raw)
    return [one / total for one in raw]


class OpponentPool:
    """One pool while its task runs."""

    def __init__(
        self,
        name: str,
        policy: NamedPolicySpec,
        seed: int,
        kept: Callable[[], Sequence[Version]],
        scores: Callable[[], Mapping[int, float]],
    ) -> None:
        """``kept`` lists the policy's versions whose files are on the disk."""
        self._name = name
        self._policy = policy
        self._seed = seed
        self.kept = kept
        self._scores = scores

    @property
    def policy(self) -> str:
        """Name of the policy whose versions are in it."""
        return self._policy.pool

    def needs(self, numbers: Sequence[int]) -> Set[int]:
        """Which of these versions are in it."""
        return set(in_pool(numbers, self._policy))

    def draw(self, number: int, attempt: int) -> Version:
        """The version that plays group ``number``. Raises ``AdapterError`` where no version of the policy is left."""
        versions = {version.number: version for version in reversed(self.kept())}
        pool = in_pool(sorted(versions), self._policy) or tuple(sorted(versions)[-1:])
        if not pool:
            raise AdapterError(
                f"The pool {self._name!r} is empty: no version of {self._policy.pool!r} is on the disk.",
                "They were deleted; the task can go on once it has made others.",
            )
        odds = weights(pool, self._policy.pick, self._scores())
        noise = np.random.Philox(key=noise_seed(self._seed, "pool", self._name, number, attempt)).random_raw(1)[0]
        point = float(noise >> np.uint64(11)) * 2.0**-53
        place = min(int(np.searchsorted(np.cumsum(odds), point, side="right")), len(pool) - 1)
        return versions[pool[place]]
