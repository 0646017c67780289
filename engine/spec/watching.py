"""``[watch]`` in a task file: what is looked for while a task learns, and which of it pauses the task.

The findings have their names here, because a task file names them. How each is found is in ``engine/train/watch``.
"""

from __future__ import annotations

from dataclasses import dataclass

from .validation import between, each_of

ENTROPY_COLLAPSE = "entropy_collapse"
EXPLODING_LENGTH = "exploding_length"
REWARD_HACKING = "reward_hacking"
FALLING_REWARD = "falling_reward"
KL_RUNAWAY = "kl_runaway"
GAP_RUNAWAY = "gap_runaway"
LARGE_STEPS = "large_steps"
ONE_REPLY = "one_reply"
CUT_REPLIES = "cut_replies"
NAMES = {
    REWARD_HACKING: "reward hacking",
    FALLING_REWARD: "falling reward",
    ENTROPY_COLLAPSE: "entropy collapse",
    ONE_REPLY: "one reply for every prompt",
    EXPLODING_LENGTH: "exploding length",
    LARGE_STEPS: "steps too large",
    KL_RUNAWAY: "KL runaway",
    GAP_RUNAWAY: "gap runaway",
    CUT_REPLIES: "replies cut off",
}
"""What people call each finding, the most important first."""
FINDINGS = tuple(NAMES)
"""The names of all findings in a task file and in JSON."""


@dataclass(frozen=True)
class WatchSpec:
    """What is looked for while it learns."""

    pause: tuple[str, ...] = each_of(*FINDINGS)
    """Findings that pause the task by themselves, the first time that each is made; by default none does."""
    ignore: tuple[str, ...] = each_of(*FINDINGS)
    """Findings that are not looked for."""
    length: float = between(2.0, 1.1, 1000.0)
    """For exploding_length: how many times as long as at the start replies must be on average."""
    kl: float | None = between(None, 0.0, 1000.0)
    """For kl_runaway: the distance to the base, in nats per token, that is too far in any case; absent: only how it
    grows counts. Needs train.kl above 0, without which it is not measured."""
