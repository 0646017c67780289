"""An episode as it was played: the turns of all its agents in the order in which they were said. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from marlaas.engine.store import StoredConversation, StoredTrajectory, Turn


@dataclass(frozen=True)
class Said:
    """A turn, and whose it is."""

    conversation: int
    """The place of its conversation in the episode."""
    part: int
    """The place of its trajectory in the conversation."""
    place: int
    """Its place among the turns of the trajectory."""
    turn: Turn
    following: Turn | None
    """What comes next in its trajectory."""


def in_order(episode: Sequence[StoredConversation]) -> list[Said]:
    """All turns of these conversations in the order in which they were said."""
    told: list[tuple[int, Said]] = []
    for conversation, one in enumerate(episode):
        for part, trajectory in enumerate(one.parts):
            following = [*trajectory.turns[1:], None]
            for place, at in enumerate(places(one, part)):
                said = Said(conversation, part, place, trajectory.turns[place], following[place])
                told.append((at, said))
    return [said for _, said in sorted(told, key=lambda entry: entry[0])]


def places(conversation: StoredConversation, part: int) -> Sequence[int]:
    """When the turns of a trajectory were said; of one without places, after those of the trajectories before it."""
    own: StoredTrajectory = conversation.parts[part]
    if len(own.places) == len(own.turns):
        return own.places
    before = sum(len(each.turns) for each in conversation.parts[:part])
    return range(before, before + len(own.turns))
