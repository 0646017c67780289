"""Where rewards for turns are shown in a conversation: after the replies that they followed.

Code that goes through the turns asks, after each turn, which rewards follow it.
"""

from __future__ import annotations

from collections.abc import Sequence

from marlaas.engine.store import Paid, Turn

from ..words.format import line
from .document import Block


class Payments:
    """Hands out the rewards of one conversation."""

    def __init__(self, paid: Sequence[Paid], name: str = "") -> None:
        """``name``: the agent's, where there are several; safe text."""
        self._paid = list(paid)
        self._name = name
        self._replies = 0

    def after(self, turn: Turn, following: Turn | None) -> list[Block]:
        """The rewards that follow a turn. A thought and its answer are one reply."""
        answered = following is not None and following.role == "assistant"
        if turn.role == "assistant" or (turn.role == "thinking" and not answered):
            self._replies += 1
            return self._take(self._replies)
        return []

    def rest(self) -> list[Block]:
        """The rewards that are left at the end."""
        return self._take(max((paid.turns for paid in self._paid), default=0))

    def _take(self, replies: int) -> list[Block]:
        taken = [paid for paid in self._paid if paid.turns <= replies]
        self._paid = [paid for paid in self._paid if paid.turns > replies]
        return [_payment(paid, self._name) for paid in taken]


def _payment(paid: Paid, name: str) -> Block:
    words = f"{name and f'{name} is '}paid {paid.amount:+.3g}{' for ' if paid.name else ''}{line(paid.name, 40)}"
    return Block(words, "$text-success" if paid.amount > 0 else "$text-error")
