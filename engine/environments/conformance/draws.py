"""Instances as the model first meets them: drawn up to the first ask, without a model.

Instances flow in, first asks flow out, or how an episode ended without one, and the seconds until then.
"""

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
"""Of all first prompts together, after which no further ones are kept in memory."""


@dataclass(frozen=True)
class Draw:
    """An instance that was looked at."""

    split: Split
    index: int
    reached: Ask | EpisodeOutcome
    seconds: float = 0.0
    """Until its first ask, or its end."""

    @cached_property
    def prompt(self) -> str | None:
        """A hash of its first prompt, of what is said and the tools but not of who is asked; None without one."""
        if not isinstance(self.reached, Ask):
            return None
        said = [(message.role, message.content, message.name) for message in self.reached.messages]
        return sha256(json.dumps([said, self.reached.tools], sort_keys=True).encode()).hexdigest()

    @property
    def characters(self) -> int:
        """Of its first prompt."""
        return sum(len(message.content) for message in self.reached.messages) if isinstance(self.reached, Ask) else 0

    @property
    def place(self) -> str:
        """It, in words."""
        return f"{self.split} instance {self.index}"


async def draw(subject: Subject, split: Split, index: int, pace: Pace, member: int = 0) -> Draw:
    """Look at one instance."""
    began = pace.clock()
    reached = await first_ask(subject.play, instance(subject, split, index, member))
    return Draw(split, index, reached, pace.clock() - began)


async def draws(subject: Subject, instances: Iterable[tuple[Split, int]], pace: Pace, share: float) -> list[Draw]:
    """Look at instances until the ``share`` of the time is used up; at few where none has a prompt."""
    made: list[Draw] = []
    async for split, index in pace.take(instances, share):
        made.append(await draw(subject, split, index, pace))
        if len(made) >= HOPELESS and all(one.prompt is None for one in made):
            break
        if sum(one.characters for one in made) >= MOST_CHARACTERS:
            break
    return made
