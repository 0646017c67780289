"""Which turn is next: turns that wait for their prefill, and which account goes first. Pure.

The account goes first that is behind by weight (``fairness.fair_clock``); within an account, conversations that hold
memory already, then the prompt that has waited longest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from ...fairness import FairClock, rollout_cost
from .prompts import Key
from .turn import Turn


class Order:
    """All accounts with turns in the scheduler, and their turns that have not begun."""

    def __init__(self) -> None:
        self._clock: FairClock[str] = FairClock()
        self._turns: Counter[str] = Counter()
        """Number of turns in the scheduler, begun or not, by account."""
        self._returning: dict[str, dict[Turn, None]] = {}
        """Turns of conversations that have their sequence already."""
        self._first: dict[str, dict[Key, list[Turn]]] = {}
        """First turns, by the prompt that they share, in order of arrival."""

    def __iter__(self) -> Iterator[Turn]:
        """All turns that wait."""
        for returning in self._returning.values():
            yield from returning
        for prompts in self._first.values():
            for turns in prompts.values():
                yield from turns

    def enter(self, turn: Turn, weight: float) -> None:
        """Add a turn, which ``wait`` lets begin. Raises ``ValueError`` for a weight that is none."""
        self._clock.weigh(turn.account, weight)
        self._clock.join(turn.account)
        self._turns[turn.account] += 1

    def wait(self, turn: Turn) -> None:
        """A turn waits from now on until it is taken."""
        if turn.conversation.slot is None:
            self._first.setdefault(turn.account, {}).setdefault(turn.key, []).append(turn)
        else:
            self._returning.setdefault(turn.account, {})[turn] = None

    def leave(self, turn: Turn) -> None:
        """Remove a turn, whether it waits or has begun."""
        self._remove(turn)
        self._turns[turn.account] -= 1
        if not self._turns[turn.account]:
            del self._turns[turn.account]
            self._clock.leave(turn.account)

    def charge(self, account: str, prefilled: int = 0, sampled: int = 0) -> None:
        """Charge an account for computed tokens; an account that asks for none saves nothing up meanwhile."""
        self._clock.begin(account)
        self._clock.charge(account, rollout_cost(prefilled, sampled))

    @property
    def first(self) -> int:
        """How many turns wait for a sequence."""
        return sum(len(turns) for prompts in self._first.values() for turns in prompts.values())

    def ready(self, free: int) -> bool:
        """Whether a turn can begin while ``free`` sequences are free."""
        return bool(self._returning or (self._first and free))

    def next_account(self, free: int) -> str:
        """The account that is behind, of those with a turn that can begin. Raises ``ValueError`` without any."""
        return self._clock.behind([*self._returning, *(self._first if free else ())])

    def take(self, account: str, free: int) -> list[Turn]:
        """Take the next turns of an account: one of a conversation that has its sequence, else up to ``free`` that
        share the prompt that has waited longest."""
        if account in self._returning:
            turns = [next(iter(self._returning[account]))]
        else:
            turns = next(iter(self._first[account].values()))[:free]
        for turn in turns:
            self._remove(turn)
        return turns

    def ahead(self, account: str, turns: Iterable[Turn]) -> bool:
        """Whether an account has had more than one of the accounts of ``turns``."""
        counter = self._clock.counter
        return any(counter(other) < counter(account) for other in {turn.account for turn in turns})

    def sort(self, turns: Iterable[Turn]) -> list[Turn]:
        """The turns, those of the account that is behind first, else in the given order."""
        turns = list(turns)
        counters = {account: self._clock.counter(account) for account in {turn.account for turn in turns}}
        return sorted(turns, key=lambda turn: counters[turn.account]) if len(counters) > 1 else turns

    def _remove(self, turn: Turn) -> None:
        """Remove a turn from those that wait, if it is one of them."""
        returning = self._returning.get(turn.account, {})
        if turn in returning:
            del returning[turn]
            if not returning:
                del self._returning[turn.account]
        prompts = self._first.get(turn.account, {})
        sharing = prompts.get(turn.key, [])
        if turn in sharing:
            sharing.remove(turn)
            if not sharing:
                del prompts[turn.key]
            if not prompts:
                del self._first[turn.account]
