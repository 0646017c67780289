"""How many tokens a policy's episodes have samplers read and sample, on average. Pure.

Newer episodes count for more, because replies grow and shrink while a policy learns.
"""

from __future__ import annotations

from dataclasses import dataclass

REMEMBERED = 512
"""Number of episodes at which the sums are halved, so that old episodes count less."""


@dataclass
class Mix:
    """Sums over the turns of one policy, and the number of its task's episodes."""

    prefilled: float = 0.0
    sampled: float = 0.0
    episodes: float = 0.0
    turns: float = 0.0

    def turn(self, prefilled: int, sampled: int) -> None:
        """Count a turn that has been sampled."""
        self.prefilled += prefilled
        self.sampled += sampled
        self.turns += 1

    def episode(self) -> None:
        """Count an episode that has ended."""
        self.episodes += 1
        if self.episodes >= REMEMBERED:
            self.prefilled, self.sampled = self.prefilled / 2, self.sampled / 2
            self.episodes, self.turns = self.episodes / 2, self.turns / 2

    @property
    def reply(self) -> float | None:
        """Tokens that a turn samples; None until one has ended."""
        return self.sampled / self.turns if self.turns else None

    @property
    def of_one(self) -> tuple[float, float] | None:
        """Tokens (read, sampled) of an episode; None until one has ended in which something was sampled."""
        if not self.sampled or not self.episodes:
            return None
        return self.prefilled / self.episodes, self.sampled / self.episodes

    @property
    def turns_of_one(self) -> float:
        """Turns of an episode; 0 until one has ended."""
        return self.turns / self.episodes if self.episodes else 0.0
