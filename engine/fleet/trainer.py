"""One trainer, many policies: calls go to it in fair order, and each is charged for the time that it took.

``SharedTrainer`` has the worker and the line before it. Calls of several policies go to the worker in one pass where
that gains, as measured (``fusing``). It serves the policies that it is given: which those are, ``TrainerPool`` decides.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..clock import monotonic
from ..errors import MarlaasError
from ..fairness import TRAINING, FairClock, Ledger, Line, Payer, Reservation, Standing
from ..training import GroupStats, Job, Refused, StepResult, Trainer
from .fusing import PassTimes, Piece, joins, moving_mean, patience
from .pass_shares import PassShares
from .waiting_calls import WaitingCalls


@dataclass(eq=False)
class Call:
    """A call that waits or is under way."""

    payer: Payer
    kind: str
    """The trainer's method."""
    policy: str
    make: Callable[[Trainer], Awaitable[Any]]
    job: Job | None = None
    """The job of an accumulation that may share its pass with other policies."""
    piece: Piece | None = None
    """What an accumulation computes."""
    answer: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def urgent(self) -> bool:
        """Whether it goes before its tenant's accumulations."""
        return self.kind != "accumulate"

    def succeed(self, result: Any) -> None:
        """Give the caller its result, unless the caller is gone."""
        if not self.answer.done():
            self.answer.set_result(result)

    def fail(self, error: BaseException) -> None:
        """Raise ``error`` in the caller, unless the caller is gone."""
        if isinstance(error, asyncio.CancelledError):
            self.answer.cancel()
        elif not self.answer.done():
            self.answer.set_exception(error)


Served = list[tuple[Call, Reservation]]


class SharedTrainer:
    """Shares out one trainer.

    ``fuse``: whether several policies may be trained in one pass; ``name`` is the worker's; ``now`` counts seconds.
    """

    def __init__(
        self,
        trainer: Trainer,
        line: Line[Call],
        ledger: Ledger,
        fuse: bool = False,
        name: str = TRAINING,
        now: Callable[[], float] = monotonic,
        like: str = "",
    ) -> None:
        """``like``: words for what it computes on; trainers with the same words give the same bits."""
        self.trainer = trainer
        self.name = name
        self.like = like
        self.died = asyncio.Event()
        """Set once the pool has given this worker up."""
        self.rested: Callable[[], None] = _nothing
        """Called when the worker has nothing left to do."""
        self._line, self._ledger, self._fuse, self._now = line, ledger, fuse, now
        self._waiting = WaitingCalls()
        self._running: asyncio.Task[None] | None = None
        self._under_way: tuple[Call, ...] = ()
        self._begun = 0.0
        self._times = PassTimes()
        self._usual: dict[str, float] = {}
        """Moving mean of the seconds of other calls than accumulations, by kind."""
        self._asked: dict[str, float] = {}
        """When each policy called last."""
        self._intervals: dict[str, float] = {}
        """Moving mean of the seconds between two calls of each policy."""
        self._shares = PassShares(now)

    @property
    def clock(self) -> FairClock[str]:
        """The clock by which the line goes."""
        return self._line.clock

    @property
    def waiting(self) -> int:
        """Calls that the worker does not have yet."""
        return len(self._line)

    @property
    def active(self) -> int:
        """Calls that the worker has."""
        return int(self._running is not None)

    @property
    def remaining(self) -> float:
        """Seconds that what the worker is at is expected to go on."""
        if not self._under_way:
            return 0.0
        return max(0.0, self._together(self._under_way) - (self._now() - self._begun))

    @property
    def work(self) -> float:
        """Seconds of all that the worker is at and of all that waits, as expected."""
        return self.remaining + self._waiting.seconds(self._times, self._usual)

    def standings(self) -> list[Standing]:
        """Where tenants stand in the line, in microseconds."""
        return self._line.standings()

    async def call(self, call: Call) -> Any:
        """Wait until it is this call's turn, make it, and return or raise what the trainer does.

        Where the caller is cancelled meanwhile, a call that the worker has goes on to its end and is paid for.
        """
        self.take_in(call)
        try:
            return await call.answer
        finally:
            self.give(call)

    def take_in(self, call: Call) -> None:
        """Put a call in line; whoever waits for its answer does so already, or will."""
        if self.died.is_set():
            raise RuntimeError(f"{self.name} serves nobody any more.")
        self._rhythm(call.policy)
        self._line.add(call.payer, call, call.urgent)
        self._waiting.add(call)
        self._shares.came(call.payer.tenant, call)
        self._dispatch()

    def next(self) -> Call | None:
        """The call whose turn is next; None where none waits."""
        return self._line.peek() if self._line else None

    def give(self, call: Call) -> None:
        """Take a call out of the line, for another trainer to take it in; one that is not in it is ignored."""
        self._line.discard(call.payer, call, call.urgent)
        self._waiting.discard(call)
        self._shares.went(call.payer.tenant, call)

    def forget(self, policy: str) -> None:
        """The policy is not served here any more."""
        self._asked.pop(policy, None)
        self._intervals.pop(policy, None)

    def give_up(self, error: MarlaasError) -> None:
        """The worker is gone: all that waits for it fails with ``error``."""
        self.died.set()
        while self._line:
            call = self._line.take()[1]
            self._waiting.discard(call)
            call.fail(error)

    def _rhythm(self, policy: str) -> None:
        now, before = self._now(), self._asked.get(policy)
        self._asked[policy] = now
        if before is not None:
            self._intervals[policy] = moving_mean(self._intervals.get(policy, now - before), now - before)

    def _together(self, calls: Sequence[Call]) -> float:
        """Seconds that these are expected to take in one go; 0 where nothing is known."""
        pieces = [call.piece for call in calls if call.piece]
        return self._times.seconds(pieces) if pieces else self._usual.get(calls[0].kind, 0.0)

    def _dispatch(self) -> None:
        if self._line and self._running is None:
            taken = self._next()
            self._under_way, self._begun = tuple(call for call, _ in taken), self._now()
            self._running = asyncio.ensure_future(self._make(taken))
            self._running.add_done_callback(self._made)

    def _made(self, _: asyncio.Task[None]) -> None:
        self._running, self._under_way = None, ()
        self._dispatch()
        if self._running is None:
            self.rested()

    def _next(self) -> Served:
        """Take the call whose turn it is, and those after it that may share its pass and gain by it."""
        first = self._take()
        calls, usual = [first], patience(self._intervals.values())
        pieces = [first[0].piece]
        while self._fuse and first[0].job and self._line:
            follower = self._line.peek()
            taken = [piece for piece in pieces if piece]
            waits = self._shares.patience(follower.payer.tenant, usual)
            if follower.job is None or follower.piece is None or not joins(taken, follower.piece, self._times, waits):
                break
            calls.append(self._take())
            pieces.append(follower.piece)
        return calls

    def _take(self) -> tuple[Call, Reservation]:
        payer, call = self._line.take()
        self._waiting.discard(call)
        return call, self._line.begin(payer, call.kind)

    async def _make(self, taken: Served) -> None:
        calls: Served = []
        for call, reservation in taken:
            if call.answer.done():  # its caller is gone
                self._line.withdraw(reservation)
            else:
                calls.append((call, reservation))
        if calls:
            await self._make_all(calls)
        for call, _ in taken:
            self._shares.went(call.payer.tenant, call)

    async def _make_all(self, calls: Served) -> None:
        began = self._now()
        try:
            results = await self._results([call for call, _ in calls])
        except BaseException as error:
            for call, reservation in calls:
                self._line.end(reservation, None)
                call.fail(error)
            if not isinstance(error, Exception):
                raise
            return
        elapsed = self._now() - began
        self._learn([call for call, _ in calls], results, elapsed)
        self._shares.passed()
        for (call, reservation), result in zip(calls, _told(calls, results), strict=True):
            self._charge(call, reservation, result, elapsed)

    async def _results(self, calls: list[Call]) -> Sequence[Any]:
        jobs = tuple(call.job for call in calls if call.job)
        try:
            if len(calls) > 1:
                return await self.trainer.accumulate_together(jobs)
            return [await calls[0].make(self.trainer)]
        finally:
            self._under_way = ()  # before the callers go on, and ask where the least work is

    def _learn(self, calls: Sequence[Call], results: Sequence[Any], elapsed: float) -> None:
        """Take in how long a pass or another call took."""
        pieces = [call.piece for call in calls if call.piece]
        stats = [result for result in results if isinstance(result, GroupStats)]
        if pieces and len(stats) == len(results):
            self._times.learn(pieces, sum(each.seconds for each in stats))
        elif not pieces:
            self._usual[calls[0].kind] = moving_mean(self._usual.get(calls[0].kind, elapsed), elapsed)

    def _charge(self, call: Call, reservation: Reservation, result: Any, elapsed: float) -> None:
        if isinstance(result, Refused):
            self._line.withdraw(reservation)
            call.fail(result.error())
            return
        seconds = result.seconds if isinstance(result, GroupStats | StepResult) else elapsed
        if isinstance(result, GroupStats) and result.step is not None:
            seconds += result.step.seconds
        self._line.end(reservation, round(1e6 * seconds))
        self._shares.charge(call.payer.tenant, seconds / self._line.weight(call.payer.tenant))
        tokens = result.measured if isinstance(result, GroupStats) else 0
        self._ledger.training(call.payer.task, tokens, seconds, self.name)
        call.succeed(result)


def _told(calls: Served, results: Sequence[Any]) -> Sequence[Any]:
    """The results, of which each accumulation says which part of the call it was."""
    passed = any(call.piece is None or call.piece.tokens for call, _ in calls)
    if passed and len(calls) == 1:
        return results
    seconds = math.fsum(result.seconds for result in results if isinstance(result, GroupStats)) if passed else 0.0
    return [
        replace(result, calls=result.seconds / seconds if seconds else 0.0)
        if isinstance(result, GroupStats)
        else result
        for result in results
    ]


def _nothing() -> None:
    """Nobody wants to know."""
