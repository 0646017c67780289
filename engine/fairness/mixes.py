"""What a policy's turns ask of samplers: tokens to read and tokens to write. Pure.

Turns and episodes flow in as they end, tokens of one episode flow out. Newer episodes count for more, because replies
grow and shrink while a policy learns.
"""

from __future__ import annotations

from dataclasses import dataclass

REMEMBERED = 512
"""Episodes after which all that is known counts half."""


@dataclass
class Mix:
    """The episodes of one task, as far as one of its policies spoke in them."""

    prefilled: float = 0.0
    sampled: float = 0.0
    episodes: float = 0.0

    def turn(self, prefilled: int, sampled: int) -> None:
        """A turn has been sampled."""
        self.prefilled += prefilled
        self.sampled += sampled

    def episode(self) -> None:
        """An episode has ended."""
        self.episodes += 1
        if self.episodes >= REMEMBERED:
            self.prefilled, self.sampled, self.episodes = self.prefilled / 2, self.sampled / 2, self.episodes / 2

    @property
    def of_one(self) -> tuple[float, float] | None:
        """Tokens (read, sampled) of an episode; None until one has ended in which something was sampled."""
        if not self.sampled or not self.episodes:
            return None
        return self.prefilled / self.episodes, self.sampled / self.episodes
