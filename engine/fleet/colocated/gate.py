"""The gate before a shared device: threads of sampler and trainer wait here for their turns.

Applies ``turns`` with a lock and a clock. What a party has to do when the device comes to it or goes from it (to bring
its weights, to take them away) is done here too, in the thread that gets the turn, and measured.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition
from time import perf_counter

from .turns import DeviceTurns, Party


def nothing() -> None:
    """For parties that have nothing to do when the device comes or goes."""


@dataclass(frozen=True)
class Move:
    """What a party does at the beginning and at the end of its turns."""

    come: Callable[[], None] = nothing
    """Before the first pass of a turn: brings what the party needs to the device, or raises and brings nothing."""
    go: Callable[[], None] = nothing
    """After the last pass of a turn: frees the device's memory."""


STAYS = Move()


class Gate:
    """Lets one thread of one party compute at a time."""

    def __init__(
        self,
        slice: float,
        moves: Mapping[Party, Move] | None = None,
        holder: Party | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """``slice`` in seconds, see ``DeviceTurns``; ``holder`` has the device to begin with."""
        self._turns = DeviceTurns(slice, holder)
        self._moves = moves or {}
        self._clock = clock
        self._changed = Condition()
        self._calls: Counter[Party] = Counter()

    @property
    def turns(self) -> DeviceTurns:
        """The state of the device at this moment."""
        return self._turns

    @contextmanager
    def busy(self, party: Party) -> Iterator[None]:
        """Within, the party has work: between two passes it keeps the device for what is left of its slice.

        Does not wait, so an event loop may enter it.
        """
        with self._changed:
            self._calls[party] += 1
        try:
            yield
        finally:
            with self._changed:
                self._calls[party] -= 1
                self._rest(party)

    @contextmanager
    def turn(self, party: Party) -> Iterator[None]:
        """Within, this thread computes and the other party does not; waits until that may be.

        Raises what ``Move.come`` raises; then neither party has the device.
        """
        before = self._begin(party)
        try:
            if before != party:
                self._switch(before, party)
            yield
        finally:
            with self._changed:
                self._turns = self._turns.end(self._clock())
                self._rest(party)

    def _begin(self, party: Party) -> Party | None:
        """Wait for the turn and take it; returns who had the device before."""
        with self._changed:
            self._turns = self._turns.wait(party)
            while delay := self._turns.delay(party, now := self._clock()):
                self._changed.wait(None if math.isinf(delay) else delay)
            before = self._turns.holder
            self._turns = self._turns.begin(party, now)  # a later moment might be one too late
            return before

    def _rest(self, party: Party) -> None:
        """Wake the other party if it waits: this one has no call under way, and does not keep the device from it."""
        if not self._calls[party]:
            self._turns = self._turns.rest(party)
        self._changed.notify_all()

    def _switch(self, before: Party | None, party: Party) -> None:
        begun = self._clock()
        try:
            if before is not None:
                self._moves.get(before, STAYS).go()
            self._moves.get(party, STAYS).come()
        except BaseException:
            with self._changed:
                self._turns = self._turns.deserted()
            raise
        with self._changed:
            now = self._clock()
            self._turns = self._turns.switched(now - begun, now)
