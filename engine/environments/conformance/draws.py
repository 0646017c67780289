"""Instances played up to their first ask, or their end without one, and the seconds until then. Needs no model."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

from marlaas.plugins.messages import Ask

from ...trajectories import Split
from ..probe import first_ask
from ..protocol import EpisodeOutcome
from .pace import Pace
from .subject import Subject, instance

HOPELESS = 4
"""Draws that fail, with none that succeeds, after which no further ones are made."""
MOST_CHARACTERS = 16 << 20
"""Most characters of all first prompts together that are kept in memory."""


@dataclass(frozen=True)
class Draw:
    """An instance that was drawn."""

    split: Split
    index: int
    reached: Ask | EpisodeOutcome
    seconds: float = 0.0
    """Time until its first ask, or its end."""

    @cached_property
    def prompt(self) -> str | None:
        """A hash of its first prompt, messages and tools without the agent's name; None without a prompt."""
        if not isinstance(self.reached, Ask) or not self.reached.messages:  # its programs ask, elsewhere
            return None
        said = [(message.role, message.content, message.name) for message in self.reached.messages]
        return sha256(json.dumps([said, self.reached.tools], sort_keys=True).encode()).hexdigest()

    @property
    def characters(self) -> int:
        """Number of characters of its first prompt."""
        return sum(len(message.content) for message in self.reached.messages) if isinstance(self.reached, Ask) else 0

    @property
    def place(self) -> str:
        """The instance in words."""
        return f"{self.split} instance {self.index}"


async def draw(subject: Subject, split: Split, index: int, pace: Pace, member: int = 0) -> Draw:
    """Play one instance up to its first ask."""
    began = pace.clock()
    reached = await first_ask(subject.play, instance(subject, split, index, member))
    return Draw(split, index, reached, pace.clock() - began)


async def draws(subject: Subject, instances: Iterable[tuple[Split, int]], pace: Pace, share: float) -> list[Draw]:
    """Draw instances until the ``share`` of the time is used up; few where none has a prompt."""
    made: list[Draw] = []
    async for split, index in pace.take(instances, share):
        made.append(await draw(subject, split, index, pace))
        if len(made) >= HOPELESS and all(one.prompt is None for one in made):
            break
        if sum(one.characters for one in made) >= MOST_CHARACTERS:
            break
    return made
