"""Which rollouts show a finding: up to three, each of another group where there are as many. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ...spec import CUT_REPLIES, ENTROPY_COLLAPSE, EXPLODING_LENGTH, ONE_REPLY, REWARD_HACKING
from ...store import Said

MOST = 3
"""Rollouts that are shown: one may be an accident, and nobody reads ten."""


def chosen(code: str, said: Sequence[Said], before: Sequence[Said] = ()) -> tuple[int, ...]:
    """The ids of the rollouts among ``said`` that show a finding best.

    - Entropy collapse and one reply: those with the commonest reply.
    - Exploding length, replies cut off: the longest, those first that the limit ended.
    - Reward hacking: held-out prompts whose reward has fallen most since ``before``, an earlier evaluation of the same.
    - All others: those with the lowest reward.
    """
    if code in (ENTROPY_COLLAPSE, ONE_REPLY):
        return _first(_commonest(said))
    if code in (EXPLODING_LENGTH, CUT_REPLIES):
        return _first(sorted(said, key=lambda one: (one.cut, len(one.replies)), reverse=True))
    paid = [one for one in said if one.reward is not None]
    if code == REWARD_HACKING:
        earlier = _rewards(before)
        return _first(sorted(paid, key=lambda one: _reward(one) - earlier.get(one.group, _reward(one))))
    return _first(sorted(paid, key=_reward))


def _reward(one: Said) -> float:
    return one.reward if one.reward is not None else 0.0


def _rewards(said: Iterable[Said]) -> Mapping[int, float]:
    """The highest reward of each group."""
    found: dict[int, float] = {}
    for one in said:
        if one.reward is not None:
            found[one.group] = max(one.reward, found.get(one.group, one.reward))
    return found


def _commonest(said: Sequence[Said]) -> list[Said]:
    if not said:
        return []
    ((reply, _),) = Counter(one.replies for one in said).most_common(1)
    return [one for one in said if one.replies == reply]


def _first(said: Sequence[Said]) -> tuple[int, ...]:
    """The first of each group, then the others."""
    leading: dict[int, Said] = {}
    for one in said:
        leading.setdefault(one.group, one)
    first = {one.id for one in leading.values()}
    in_order = [*leading.values(), *(one for one in said if one.id not in first)]
    return tuple(one.id for one in in_order[:MOST])
