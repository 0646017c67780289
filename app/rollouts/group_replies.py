"""What the whole group of a conversation answered: each distinct reply with its reward and how often it came. Pure.

Shown below a conversation, so that it is read beside the others. All text in a row of the store is foreign; what comes
out of here is safe.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from marlaas.engine.store import GroupSummary, MemberSummary, StoredConversation

from ..words.format import cells, pad, score
from .answers import FAILED, RIGHT, UNPAID, WRONG, Answer, answers, each_answer
from .document import Block, Stretch
from .marks import numbers

MOST = 32
"""Distinct replies that are shown; the others are counted."""
HERE, ELSEWHERE = "▸ ", "  "


def group_replies(group: GroupSummary, shown: StoredConversation) -> list[Block]:
    """Blocks below a conversation of this group; none where the group has no other conversation."""
    if len(group.members) < 2:
        return []
    found = answers(group.members)
    distinct = f"{len(found)} different" if len(found) > 1 else "all the same"
    title = f"The {len(group.members)} last replies of group {group.number}, {distinct} · mean reward {numbers(group)}"
    each = each_answer(group.members)
    own = [one for one, member in zip(each, group.members, strict=True) if _is(member, shown)]
    left = len(found) - MOST
    more = [Block(f"{ELSEWHERE}and {left} other{'' if left == 1 else 's'}", "$text-muted")] if left > 0 else []
    rewards = [_rewards(one, each, group.members) for one in found[:MOST]]
    wide = max(map(cells, rewards))
    lines = [
        _line(one, pad(reward, wide, right=True), alone(one) in own)
        for one, reward in zip(found, rewards, strict=False)
    ]
    return [Block(""), Block(title, "$text-accent"), *lines, *more]


def alone(one: Answer) -> Answer:
    """A reply as one of its members gave it."""
    return replace(one, count=1)


def _is(member: MemberSummary, shown: StoredConversation) -> bool:
    return (member.member, member.agent) == (shown.member, shown.agent)


def _rewards(one: Answer, each: Sequence[Answer], members: Sequence[MemberSummary]) -> str:
    """What the members were paid that gave this reply: one reward, or from the lowest to the highest."""
    paid = [member.reward for reply, member in zip(each, members, strict=True) if reply == alone(one)]
    known = [reward for reward in paid if reward is not None and math.isfinite(reward)]
    if not known:
        return "-"
    low, high = score(min(known)), score(max(known))
    return low if low == high else f"{low} to {high}"


def _line(one: Answer, reward: str, here: bool) -> Block:
    """A reply: whether it is the one above, how it ended, its reward, how often it came, and what was said."""
    sign, style = one.mark
    sign = sign if sign in (RIGHT, WRONG, FAILED, UNPAID) else " "
    begin = HERE if here else ELSEWHERE
    paid = f"{begin}{sign} {reward} {pad(f'×{one.count}', 4)} "
    quiet = [Stretch(len(paid), len(paid) + len(one.said), "$text-muted")] if one.quiet else []
    return Block(f"{paid}{one.said}", "", [Stretch(len(begin), len(paid), style), *quiet])
