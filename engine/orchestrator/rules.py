"""What a task file says of rewards and groups, with the defaults of its loss filled in.

A specification flows in, what closes a group and what replaces one flows out. Pure; the trainer's part of the same
table is ``recovery.policy_config``.
"""

from __future__ import annotations

from typing import cast

from ..spec import TaskSpec
from ..training.advantages import ClosingRules
from ..training.losses.published import AdvantageKind, published
from ..training.overlong import Overlong

REPLACEMENTS = 2
"""Groups of equal rewards that may be replaced under one number: together at most twice a step's groups. Each number
has its own allowance, because a common one would go to whichever group ends first, and a run would not repeat itself;
and what has an end cannot wait for ever."""


def closing_rules(spec: TaskSpec) -> ClosingRules:
    """How the task's rewards become advantages."""
    train, sampling = spec.train, spec.sampling
    kind = published(train.loss).advantage if train.advantage == "auto" else cast(AdvantageKind, train.advantage)
    return ClosingRules(
        kind, Overlong(train.overlong, train.overlong_buffer, sampling.max_tokens, sampling.max_episode_tokens)
    )


def replacements(spec: TaskSpec) -> int:
    """How often a group number is filled anew because all rewards are equal (DAPO, arXiv 2503.14476, section 3.2)."""
    wanted = spec.train.dynamic_sampling
    return REPLACEMENTS if (published(spec.train.loss).dynamic_sampling if wanted is None else wanted) else 0
