"""The training workers of one engine: calls in fair order, and which of them has a policy's state."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ..clock import monotonic
from ..errors import MarlaasError, StateLost, WorkerDied
from ..fairness import TRAINING, FairClock, Ledger, Line, Payer, Reservation, Standing, together
from ..racing import until_first
from ..training import GroupStats, Job, PolicyConfig, Probe, Refused, StepResult, Trainer, TrainGroup, pass_tokens
from .fusing import PassShares, PassTimes, Piece, Shape, joins, moving_mean, patience

# What waits before a trainer, as sums: how long it takes is told without a look at each call.
#
# With many trainers that is asked for all of them before every call; looking at each call that waits anywhere would
# make the cost of a call grow with the number of tasks.


class WaitingCall(Protocol):
    """What is asked of a call."""

    @property
    def kind(self) -> str:
        """The trainer's method."""

    @property
    def piece(self) -> Piece | None:
        """What an accumulation computes."""


@dataclass
class _Sum:
    calls: int = 0
    tokens: int = 0


class WaitingCalls:
    """The calls of one line."""

    def __init__(self) -> None:
        self._there: set[WaitingCall] = set()
        self._shapes: dict[Shape, _Sum] = {}
        self._kinds: Counter[str] = Counter()
        """Of calls without a piece."""

    def add(self, call: WaitingCall) -> None:
        """A call waits."""
        if call not in self._there:
            self._there.add(call)
            self._count(call, 1)

    def discard(self, call: WaitingCall) -> None:
        """It waits no more; one that does not wait is ignored."""
        if call in self._there:
            self._there.discard(call)
            self._count(call, -1)

    def seconds(self, times: PassTimes, usual: Mapping[str, float]) -> float:
        """How long all take one after the other; what nothing is known of counts as nothing."""
        passes = ((known, own) for shape, own in self._shapes.items() if (known := times.of(shape)))
        return sum(known.first * own.calls + known.token * own.tokens for known, own in passes) + sum(
            usual.get(kind, 0.0) * count for kind, count in self._kinds.items()
        )

    def _count(self, call: WaitingCall, by: int) -> None:
        piece = call.piece
        if piece is None:
            self._kinds[call.kind] += by
            return
        own = self._shapes.setdefault(piece.shape, _Sum())
        own.calls += by
        own.tokens += by * piece.tokens
        if not own.calls:
            del self._shapes[piece.shape]


# One trainer, many policies: calls go to it in fair order, and each is charged for the time that it took.
#
# ``SharedTrainer`` has the worker and the line before it. Calls of several policies go to the worker in one pass
# where that gains, as measured (``fusing``). It serves the policies that it is given: which those are,
# ``TrainerPool`` decides.


@dataclass(eq=False)
class Call:
    """A call that waits or is in progress."""

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

        Where the caller is cancelled meanwhile, a call that the worker has continues to its end and is paid for.
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
        """The call whose turn is next; None if none waits."""
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
        """Seconds that these are expected to take in one go; 0 if nothing is known."""
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


# Which of several trainers serves a policy: the one with the least work, if that is worth a move. Pure.

PAYS = 2.0
"""How many times the seconds of a move the wait must be shorter: once for going there, once for coming back."""


@dataclass(frozen=True)
class Busy:
    """What a trainer has to do."""

    work: float
    """Seconds, as expected."""
    policies: int
    """Policies whose state it has."""


def chosen(home: str, trainers: Mapping[str, Busy], move: float) -> str:
    """The trainer for a policy's call.

    ``home`` has the policy's state; empty: none has, and nothing need be moved. ``move`` is how many seconds moving it
    takes.
    """
    least = min(trainers, key=lambda name: (trainers[name].work, trainers[name].policies))
    if not home or trainers[home].work - trainers[least].work > PAYS * move:
        return least
    return home


# The training workers of one engine: which of them has a policy's state, and when that moves.
#
# FlexMARL (arXiv 2602.09578) binds devices to agents on demand and swaps training states in and out; here a policy's
# state moves by get and set, through the engine, with a checksum and without the disk. It stays where it is unless
# the wait for that trainer is longer than a move (``trainer_choice``). Policies are served on all workers at the same
# time; the lines before them go by one clock, so shares are of all of them together.

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
    """Its calls that wait or are in progress; it does not move with more than the one that asks for it."""


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
        """How a policy is trained; None if it is not open."""
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
        """Make a call of an open policy, if its state is or will be. Raises what the trainer does, and ``StateLost``
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
        """All workers begin again: nobody waits any longer for one of these trainers to be replaced."""
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
        then all workers begin again."""
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
            await asyncio.shield(move)  # one that began is ended, also if nobody waits for it any more

    def _rested(self, idle: SharedTrainer) -> None:
        """Let a trainer without work take over the next call of the one with the most, if that pays."""
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
        """Move a state; if the other trainer cannot take it, it stays. Raises what its own trainer does."""
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
    """Take note of how a move ended, also if the task that wanted it is gone."""
    if not move.cancelled():
        move.exception()


def _lost(policy: str) -> StateLost:
    return StateLost(
        f"The worker died that had the training state of policy {policy}.", "It goes on from its last commit."
    )


# One task's view of the trainers: what a learner calls, charged to the task.


class TaskTrainer:
    """Implements ``training.protocol.PolicyTrainer``.

    ``alone``: its groups never share a pass with other policies', and its policies stay on alike processors, to
    have the same bits in every run.
    """

    def __init__(self, pool: TrainerPool, payer: Payer, alone: bool) -> None:
        self._pool = pool
        self._payer = payer
        self._alone = alone

    async def open(self, policy: str, config: PolicyConfig, path: str, resume: bool) -> StepResult:
        """See the protocol."""
        call = Call(self._payer, "open", policy, lambda trainer: trainer.open(policy, config, path, resume))
        result: StepResult = await self._pool.open(call, config, self._alone)
        return result

    async def accumulate(
        self, policy: str, groups: tuple[TrainGroup, ...], probe: Probe | None = None, path: str = ""
    ) -> GroupStats:
        """See the protocol."""
        config = self._pool.config(policy)
        probed = sum(len(tokens) for tokens, _ in probe.sequences) if probe else 0
        piece = Piece(Shape.of(config), pass_tokens(groups, config) + probed) if config else None
        job = None if self._alone else Job(policy, groups, probe, path)
        call = Call(
            self._payer,
            "accumulate",
            policy,
            lambda trainer: trainer.accumulate(policy, groups, probe, path),
            job,
            piece,
        )
        stats: GroupStats = await self._pool.call(call)
        return stats

    async def step(self, policy: str, path: str) -> StepResult:
        """See the protocol."""
        call = Call(self._payer, "step", policy, lambda trainer: trainer.step(policy, path))
        result: StepResult = await self._pool.call(call)
        return result

    async def close(self, policy: str) -> None:
        """See the protocol; at once, for it costs nothing and frees memory."""
        await self._pool.close(policy)
