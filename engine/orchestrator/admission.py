"""The rule that bounds staleness by construction: which group may begin, given the version that is current.

Step k consumes exactly the groups kB … kB+B-1 and makes version k+1. A group that begins at version v is consumed by
step number // B, so its tokens are then number // B - v versions old; admitting only while that is at most
``max_staleness`` bounds every trained token, and no finished work is ever thrown away.
"""

from __future__ import annotations


def may_begin(number: int, version: int, groups_per_step: int, max_staleness: int) -> bool:
    """Whether group ``number`` may begin while ``version`` is current."""
    return number < (max_staleness + version + 1) * groups_per_step


def step_groups(step: int, groups_per_step: int) -> range:
    """Numbers of the groups that optimizer step ``step`` (from 0) consumes."""
    return range(step * groups_per_step, (step + 1) * groups_per_step)


def staleness(number: int, version: int, groups_per_step: int) -> int:
    """How many versions old the tokens of group ``number`` are when they are trained on."""
    return number // groups_per_step - version
