"""Whose turn it is: turns that wait for their beginning to be computed, and which account goes first. Pure.

Turns flow in as they arrive, those to serve next flow out. Among accounts goes first who is behind by weight
(``fairness.clock``); within an account conversations that hold memory already, then the prompt that has waited longest.
Knows nothing of contexts, rows or results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from ...fairness import FairClock, rollout_cost
from .prompts import Key
from .turn import Turn


class Order:
    """All accounts with turns on the scheduler, and their turns that have not begun."""

    def __init__(self) -> None:
        self._clock: FairClock[str] = FairClock()
        self._turns: Counter[str] = Counter()
        """On the scheduler, begun or not, by account."""
        self._returning: dict[str, dict[Turn, None]] = {}
        """Turns of conversations that have their sequence already."""
        self._first: dict[str, dict[Key, list[Turn]]] = {}
        """First turns, by what they share; keys in order of arrival."""

    def __iter__(self) -> Iterator[Turn]:
        """All turns that wait."""
        for returning in self._returning.values():
            yield from returning
        for prompts in self._first.values():
            for turns in prompts.values():
                yield from turns

    def enter(self, turn: Turn, weight: float) -> None:
        """A turn comes on the scheduler and waits. Raises ``ValueError`` for a weight that is none."""
        self._clock.weigh(turn.account, weight)
        self._clock.join(turn.account)
        self._turns[turn.account] += 1
        if turn.conversation.slot is None:
            self._first.setdefault(turn.account, {}).setdefault(turn.key, []).append(turn)
        else:
            self._returning.setdefault(turn.account, {})[turn] = None

    def leave(self, turn: Turn) -> None:
        """A turn leaves the scheduler, wherever it stands."""
        self._remove(turn)
        self._turns[turn.account] -= 1
        if not self._turns[turn.account]:
            del self._turns[turn.account]
            self._clock.leave(turn.account)

    def charge(self, account: str, prefilled: int = 0, sampled: int = 0) -> None:
        """So many tokens have been computed for an account; whoever asked for none saves nothing up meanwhile."""
        self._clock.begin(account)
        self._clock.charge(account, rollout_cost(prefilled, sampled))

    def ready(self, free: int) -> bool:
        """Whether a turn can begin while ``free`` sequences are free."""
        return bool(self._returning or (self._first and free))

    def next_account(self, free: int) -> str:
        """Who of those that have a turn that can begin is behind. Raises ``ValueError`` if there are none."""
        return self._clock.behind([*self._returning, *(self._first if free else ())])

    def take(self, account: str, free: int) -> list[Turn]:
        """The next turns of an account, which wait no longer: one that returns, else up to ``free`` that share the
        prompt that has waited longest."""
        if account in self._returning:
            turns = [next(iter(self._returning[account]))]
        else:
            turns = next(iter(self._first[account].values()))[:free]
        for turn in turns:
            self._remove(turn)
        return turns

    def ahead(self, account: str, turns: Iterable[Turn]) -> bool:
        """Whether an account has had more than one of those of ``turns``."""
        counter = self._clock.counter
        return any(counter(other) < counter(account) for other in {turn.account for turn in turns})

    def sort(self, turns: Iterable[Turn]) -> list[Turn]:
        """Those of the account that is behind first, else as they come."""
        turns = list(turns)
        counters = {account: self._clock.counter(account) for account in {turn.account for turn in turns}}
        return sorted(turns, key=lambda turn: counters[turn.account]) if len(counters) > 1 else turns

    def _remove(self, turn: Turn) -> None:
        """Of those that wait, if it is one."""
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
