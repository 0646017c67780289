"""When each turn of an episode was said, for episodes of which it was not written down: the best order that is known.

Pure. Standard library only.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ...rows import Turn

MANY = 8
"""With more conversations than this, nobody looks for what they quote of each other: that takes the square of time."""


def reply_ends(turns: Sequence[Turn]) -> list[int]:
    """For each reply the number of turns up to its end. A thought and the answer after it are one reply."""
    roles = [*(turn.role for turn in turns), ""]
    return [
        place
        for place, (role, following) in enumerate(pairwise(roles), 1)
        if role == "assistant" or (role == "thinking" and following != "assistant")
    ]


def likely_places(conversations: Sequence[Sequence[Turn]]) -> list[list[int]]:
    """A place among the turns of the episode, from 0, for every turn of each conversation.

    Everybody speaks in turn, in the order given. Who is told what another one has just replied waits for that reply.
    """
    exchanges = [_exchanges(turns) for turns in conversations]
    said = [0] * len(exchanges)
    found: list[list[int]] = [[] for _ in exchanges]
    count = 0
    while left := [one for one, own in enumerate(exchanges) if said[one] < len(own)]:
        left.sort(key=lambda one: (said[one], one))
        ready = (one for one in left if len(exchanges) > MANY or not _waits(one, said, exchanges))
        one = next(ready, left[0])
        turns = exchanges[one][said[one]]
        found[one] += range(count, count + len(turns))
        count += len(turns)
        said[one] += 1
    return found


def _exchanges(turns: Sequence[Turn]) -> list[Sequence[Turn]]:
    """What was told before a reply together with the reply; the last may lack its reply."""
    ends = reply_ends(turns)
    bounds = [0, *ends, *([len(turns)] if turns and len(turns) not in ends else [])]
    return [turns[start:stop] for start, stop in pairwise(bounds)]


def _waits(one: int, said: Sequence[int], exchanges: Sequence[Sequence[Sequence[Turn]]]) -> bool:
    """Whether the next prompt of a conversation quotes a reply that comes next in another one.

    Only replies of the same round count: short ones are found in many prompts.
    """
    prompt = "\n".join(turn.text for turn in exchanges[one][said[one]] if turn.role not in ("assistant", "thinking"))
    for other, own in enumerate(exchanges):
        if other != one and said[other] == said[one] < len(own):
            last = own[said[other]][-1]
            if last.role == "assistant" and last.text.strip() and last.text.strip() in prompt:
                return True
    return False
