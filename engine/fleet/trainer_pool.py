"""The training workers of one engine: which of them has a policy's state, and when that moves.

FlexMARL (arXiv 2602.09578) binds devices to agents on demand and swaps training states in and out; here a policy's
state moves by get and set, through the engine, with a checksum and without the disk. It stays where it is unless the
wait for that trainer is longer than a move (``trainer_choice``). Policies are served on all workers at the same time;
the lines before them go by one clock, so shares are of all of them together.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

from ..clock import monotonic
from ..errors import StateLost, WorkerDied
from ..fairness import Standing, together
from ..racing import until_first
from ..training import PolicyConfig
from .fusing import moving_mean
from .trainer import Call, SharedTrainer
from .trainer_choice import Busy, chosen

MOVE = 0.1
"""Seconds that a move is taken to last until one was measured."""


@dataclass(eq=False)
class _Home:
    """Where a policy's state is."""

    trainer: SharedTrainer
    config: PolicyConfig
    alone: bool = False
    """Whether it stays at trainers that give the same bits as the first one."""
    calls: int = 0
    """Its calls that wait or are under way; it does not move with more than the one that asks for it."""


class TrainerPool:
    """Serves policies' calls by one or several trainers, each with a line of its own.

    ``moves``: whether states move between them; ``log`` is told of moves that failed.
    """

    def __init__(
        self,
        trainers: Iterable[SharedTrainer],
        moves: bool = True,
        log: Callable[[str], None] = lambda _: None,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._trainers: dict[str, SharedTrainer] = {}
        trainers = tuple(trainers)
        self.clock = trainers[0].clock
        """The clock of all lines."""
        self._like = trainers[0].like
        self._arrived = asyncio.Event()
        """Set, and replaced, when a trainer is taken in."""
        self._homes: dict[str, _Home] = {}
        self._lost: set[str] = set()
        """Policies whose state is gone, until they are opened again."""
        self._moves, self._log, self._now = moves, log, now
        self._seconds: dict[int, float] = {}
        """Moving mean of the seconds of a move, by rank."""
        self._moving: dict[str, asyncio.Task[None]] = {}
        """The newest move of each policy, which may be over."""
        self._errands: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()
        self.moved = 0
        """Moves so far."""
        for trainer in trainers:
            self.take_in(trainer)

    @property
    def trainers(self) -> dict[str, SharedTrainer]:
        """Those that live, by worker's name."""
        return dict(self._trainers)

    def standings(self) -> list[Standing]:
        """Where tenants stand in all lines together, in microseconds."""
        return together(trainer.standings() for trainer in self._trainers.values())

    def config(self, policy: str) -> PolicyConfig | None:
        """How a policy is trained; None where it is not open."""
        home = self._homes.get(policy)
        return home.config if home else None

    async def open(self, call: Call, config: PolicyConfig, alone: bool = False) -> Any:
        """Open a policy at the trainer with the least work, in place of what it was; ``alone``: at one that gives the
        same bits as the first. Raises what the trainer does."""
        policy, before = call.policy, self._homes.get(call.policy)
        await self._still(policy)
        while not (able := self._able(alone)):  # the only such trainer has died: it has a successor soon
            await until_first(self._arrived.wait(), self._ended.wait())
            if self._ended.is_set():
                raise WorkerDied("The trainer died that gives this policy's bits.")
        here = self._trainers[chosen("", able, 0.0)]
        self._homes[policy] = home = _Home(here, config, alone, calls=1)
        self._lost.discard(policy)
        if before and before.trainer is not here:
            self._errand(self._close(before.trainer, policy))
        try:
            return await self._at(home, call)
        finally:
            home.calls -= 1

    async def call(self, call: Call) -> Any:
        """Make a call of an open policy, where its state is or will be. Raises what the trainer does, and ``StateLost``
        where the trainer died that had it, and others live."""
        home = self._homes.get(call.policy)
        if home is None:
            if call.policy in self._lost:
                raise _lost(call.policy)
            return await next(iter(self._trainers.values())).call(call)  # it says what is wrong
        home.calls += 1
        try:
            await self._place(home, call.policy)
            return await self._at(home, call)
        finally:
            home.calls -= 1

    async def close(self, policy: str) -> None:
        """Forget a policy; unknown names are fine."""
        home = self._homes.pop(policy, None)
        self._lost.discard(policy)
        await self._still(policy)
        if home is not None:
            await self._close(home.trainer, policy)

    def lose(self, name: str) -> None:
        """A trainer died: what waits for it fails, and its policies are not open any more."""
        trainer = self._trainers.pop(name)
        for policy in [policy for policy, home in self._homes.items() if home.trainer is trainer]:
            del self._homes[policy]
            self._lost.add(policy)
        trainer.give_up(StateLost(f"Worker {name} died, which had the training state of this policy."))

    def end(self) -> None:
        """All workers begin anew: nobody waits any longer for one of these trainers to be replaced."""
        self._ended.set()

    def take_in(self, trainer: SharedTrainer) -> None:
        """A trainer serves policies from now on."""
        self._trainers[trainer.name] = trainer
        arrived, self._arrived = self._arrived, asyncio.Event()
        arrived.set()
        trainer.rested = lambda: self._rested(trainer)

    async def _at(self, home: _Home, call: Call) -> Any:
        if home.trainer.died.is_set():
            raise _lost(call.policy)
        try:
            return await home.trainer.call(call)
        except StateLost:
            raise
        except WorkerDied as error:  # of the trainer where the policy is by now
            await self._noticed(home.trainer)
            raise _lost(call.policy) from error

    async def _noticed(self, trainer: SharedTrainer) -> None:
        """Wait until the supervisor says of a dead trainer that it alone is replaced; of the last one, raise at once:
        then all workers begin anew."""
        if list(self._trainers.values()) != [trainer]:
            await until_first(trainer.died.wait(), self._ended.wait())
        if not trainer.died.is_set():
            raise WorkerDied(f"Worker {trainer.name} died.")

    def _busy(self) -> dict[str, Busy]:
        counts = dict.fromkeys(self._trainers, 0)
        for home in self._homes.values():
            counts[home.trainer.name] = counts.get(home.trainer.name, 0) + 1
        return {name: Busy(trainer.work, counts[name]) for name, trainer in self._trainers.items()}

    def _able(self, alone: bool) -> dict[str, Busy]:
        """Trainers for a policy: all, or those that give the same bits as the first."""
        return {name: busy for name, busy in self._busy().items() if not alone or self._suits(name)}

    def _suits(self, name: str) -> bool:
        return self._trainers[name].like == self._like

    async def _place(self, home: _Home, policy: str) -> None:
        """Move the policy's state before its call where that pays; in any case, wait until it does not move."""
        await self._still(policy)
        if not self._moves or home.calls > 1 or len(self._trainers) == 1 or home.trainer.died.is_set():
            return
        name = chosen(home.trainer.name, self._able(home.alone), self._move_seconds(home))
        if name != home.trainer.name:
            move = self._moving[policy] = asyncio.ensure_future(self._move(home, policy, self._trainers[name]))
            move.add_done_callback(_heard)
            await asyncio.shield(move)  # one that began is ended, also where nobody waits for it any more

    def _rested(self, idle: SharedTrainer) -> None:
        """Let a trainer without work take over the next call of the one with the most, where that pays."""
        others = [trainer for trainer in self._trainers.values() if trainer is not idle and trainer.waiting]
        if not self._moves or not others or idle.died.is_set():
            return
        busiest = max(others, key=lambda trainer: trainer.work)
        call = busiest.next()
        home = self._homes.get(call.policy) if call else None
        if call is None or home is None or home.trainer is not busiest or home.calls > 1 or call.kind == "open":
            return
        if home.alone and not self._suits(idle.name):
            return
        now = {busiest.name: Busy(busiest.remaining, 0), idle.name: Busy(0.0, 0)}
        if chosen(busiest.name, now, self._move_seconds(home)) == idle.name:
            busiest.give(call)
            self._moving[call.policy] = self._errand(self._take_over(home, call, idle))

    async def _take_over(self, home: _Home, call: Call, idle: SharedTrainer) -> None:
        try:
            await self._move(home, call.policy, idle)
        except Exception as error:  # whoever waits for the call must hear of it
            call.fail(error)
        if home.trainer.died.is_set():
            call.fail(_lost(call.policy))
        elif not call.answer.done():
            home.trainer.take_in(call)

    async def _still(self, policy: str) -> None:
        """Wait until a policy does not move."""
        if moving := self._moving.get(policy):
            await asyncio.wait((moving,))
            if self._moving.get(policy) is moving:
                del self._moving[policy]

    async def _move(self, home: _Home, policy: str, there: SharedTrainer) -> None:
        """Move a state; where the other trainer cannot take it, it stays. Raises what its own trainer does."""
        here, begun = home.trainer, self._now()
        try:
            moved = await here.trainer.get_state(policy)
        except WorkerDied as error:
            await self._noticed(here)
            raise _lost(policy) from error
        try:
            await there.trainer.set_state(policy, moved)
        except Exception as error:  # it has no memory for it, for one
            self._log(f"The state of policy {policy} could not move from {here.name} to {there.name}: {error}")
            return
        if self._homes.get(policy) is not home or there.died.is_set():  # it was closed meanwhile, or both died
            self._errand(self._close(there, policy))
            return
        home.trainer = there
        here.forget(policy)
        self._errand(self._close(here, policy))
        self.moved += 1
        rank, took = home.config.rank, self._now() - begun
        self._seconds[rank] = moving_mean(self._seconds.get(rank, took), took)

    def _move_seconds(self, home: _Home) -> float:
        return self._seconds.get(home.config.rank, MOVE)

    async def _close(self, trainer: SharedTrainer, policy: str) -> None:
        trainer.forget(policy)
        with contextlib.suppress(WorkerDied):
            await trainer.trainer.close(policy)

    def _errand(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run what need not be waited for."""
        errand = asyncio.ensure_future(work)
        self._errands.add(errand)
        errand.add_done_callback(self._errands.discard)
        return errand


def _heard(move: asyncio.Task[None]) -> None:
    """Take note of how a move ended, also where the task that wanted it is gone."""
    if not move.cancelled():
        move.exception()


def _lost(policy: str) -> StateLost:
    return StateLost(
        f"The worker died that had the training state of policy {policy}.", "It goes on from its last commit."
    )
