"""The guessing game of the bundled environment `guess`, against a player that bisects or counts upwards."""

from dataclasses import dataclass
from random import Random

from tools.base.problem import Message, Tool, Verdict, last_word


@dataclass(frozen=True)
class Game:
    """A secret number in a range, to be found in so many turns."""

    low: int
    width: int
    turns: int
    secret: int

    @property
    def opening(self) -> str:
        """The range."""
        return f"Guess my number from {self.low} to {self.low + self.width - 1}."

    @property
    def lead(self) -> str:
        """The first digit of the range."""
        return str(self.low)[0]

    @property
    def system(self) -> str:
        """None."""
        return ""

    @property
    def tools(self) -> list[Tool]:
        """None."""
        return []

    def reply(self, heard: list[str], right: bool) -> str:
        """The right player halves what is left; the wrong one counts upwards from the lowest number."""
        hints = heard[1:]
        if not right:
            return str(self.low + len(hints))
        low, high = self.low, self.low + self.width - 1
        for hint in hints:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if hint == "higher" else (low, middle - 1)
        return str((low + high) // 2)

    def judge(self, replies: list[str]) -> Message | Verdict:
        """A hint after a miss; leniently, the last number of a reply is the guess."""
        number = last_word(replies[-1])
        if number == str(self.secret):
            return Verdict(all(r.isdecimal() for r in replies), True)
        if not number.isdecimal() or len(replies) == self.turns:
            return Verdict(False, False)
        return {"role": "user", "content": "higher" if int(number) < self.secret else "lower"}


def game(rng: Random, width: int, turns: int, highest: int = 999) -> Game:
    """A range anywhere below `highest`, and a secret in it."""
    low = rng.randint(0, highest - width + 1)
    return Game(low, width, turns, rng.randint(low, low + width - 1))
