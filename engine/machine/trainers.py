"""The training workers of one engine: calls in fair order, shared passes, and the places of policies' states."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..clock import monotonic
from ..errors import MarlaasError, StateLost, WorkerDied
from ..fairness.line import TRAINING, FairClock, Ledger, Line, Payer, Reservation, Standing, together
from ..racing import until_first
from ..trainer.advantages import pass_tokens
from ..trainer.protocol import GroupStats, Job, PolicyConfig, Probe, Refused, StepResult, Trainer, TrainGroup

# Decides which policies share a pass over the base, and how much that may delay a tenant.

# With many calls in each pass, each policy would have one step per pass, and weights would mean nothing. So a tenant
# that is ahead, by weight, makes passes that are short enough for the others, measured by their usual absence between
# an answer and the next call.

LATE = 2.0
"""A tenant is expected for this many times its longest recent absence."""
KEPT = 0.97
"""Decay of earlier service per pass: it is forgotten after a hundred passes."""
MORE = 1.15
"""A tenant is ahead with this many times as much service: passes even out a tenth or two by themselves."""


class PassShares:
    """Recent service of one trainer's tenants; ``now`` counts seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._had: dict[str, float] = {}
        self._calls: dict[str, set[object]] = {}
        self._left: dict[str, float] = {}
        """Time of the last answer of tenants without a call."""
        self._away: dict[str, float] = {}
        """Moving mean of the seconds until its next call; 0 for a call that comes while another is here."""
        self._longest: dict[str, float] = {}
        """The longest recent one: between two steps a tenant is away for longer than within one."""

    def came(self, tenant: str, call: object) -> None:
        """The tenant calls. One that was not expected begins level with the tenant that has had least."""
        if tenant not in self._calls and not self._soon(tenant):
            least = min((self._had.get(one, 0.0) for one in self._there()), default=0.0)
            self._had[tenant] = max(least, self._had.get(tenant, 0.0))
        calls = self._calls.setdefault(tenant, set())
        left = self._left.pop(tenant, None)
        if calls:
            self._away[tenant] = moving_mean(self._away.get(tenant, 0.0), 0.0)
        elif left is not None:
            away = self._now() - left
            self._away[tenant] = moving_mean(self._away.get(tenant, away), away)
            self._longest[tenant] = max(away, moving_mean(self._longest.get(tenant, away), away))
        calls.add(call)

    def went(self, tenant: str, call: object) -> None:
        calls = self._calls.get(tenant, set())
        if call in calls:
            calls.discard(call)
            if not calls:
                del self._calls[tenant]
                self._left[tenant] = self._now()

    def passed(self) -> None:
        for tenant in self._had:
            self._had[tenant] *= KEPT

    def charge(self, tenant: str, seconds: float) -> None:
        self._had[tenant] = self._had.get(tenant, 0.0) + seconds

    def patience(self, tenant: str, usual: float) -> float:
        """Seconds, at most ``usual``, by which a call of ``tenant`` may lengthen a pass."""
        if len(self._had) < 2:
            return usual
        had = self._had.get(tenant, 0.0)
        behind = [one for one in self._there() if one != tenant and MORE * self._had.get(one, 0.0) < had]
        return min([usual, *(WAIT * self._away[one] for one in behind if one in self._away)])

    def _there(self) -> list[str]:
        return [*self._calls, *filter(self._soon, self._left)]

    def _soon(self, tenant: str) -> bool:
        return self._now() - self._left.get(tenant, -inf) < LATE * self._longest.get(tenant, 0.0)


# Several policies in one pass pay its fixed time once; how much that gains is learnt from passes. The wait of others is
# bounded by a share of the time between their calls.

GAIN = 0.05
WAIT = 0.25
"""Share of the time between two calls of a policy by which a shared pass may lengthen the wait of others."""
LEAST_WAIT = 0.05
MOST = 32
NEWEST = 0.25
PRIOR = 1e-3
"""Weight, in passes, of the prior: a pass costs as much fixed as by its tokens, and further policies add nothing to
the fixed part."""


@dataclass(frozen=True)
class Shape:
    """What decides how long a policy's tokens take, besides their number."""

    rank: int
    kl: bool
    entropy: bool

    @classmethod
    def of(cls, config: PolicyConfig) -> Shape:
        return cls(config.rank, config.kl > 0.0, config.entropy > 0.0)


@dataclass(frozen=True)
class Piece:
    """One policy's part of a pass."""

    shape: Shape
    tokens: int


@dataclass(frozen=True)
class Times:
    """Seconds of a pass: ``first + (policies - 1) · further + tokens · token``."""

    first: float
    further: float
    token: float


@dataclass
class _Fit:
    products: NDArray[np.float64] = field(default_factory=lambda: np.zeros((3, 3)))
    answers: NDArray[np.float64] = field(default_factory=lambda: np.zeros(3))
    tokens: float = 0.0
    seconds: float = 0.0
    passes: float = 0.0

    def add(self, policies: int, tokens: int, seconds: float) -> None:
        row = np.array([1.0, policies - 1.0, tokens]) / seconds
        self.products = KEPT * self.products + np.outer(row, row)
        self.answers = KEPT * self.answers + row
        self.tokens = KEPT * self.tokens + tokens
        self.seconds = KEPT * self.seconds + seconds
        self.passes = KEPT * self.passes + 1.0

    def solved(self) -> Times:
        mean, tokens = self.seconds / self.passes, max(1.0, self.tokens / self.passes)
        scale = np.array([mean, mean, mean / tokens])
        believed = np.array([0.5, 0.0, 0.5])
        products = scale[:, None] * self.products * scale + PRIOR * np.eye(3)
        first, further, token = np.linalg.solve(products, scale * self.answers + PRIOR * believed) * scale
        return Times(max(0.0, float(first)), max(0.0, float(further)), max(0.0, float(token)))


class PassTimes:
    """Learns the durations of passes, for each shape of policies."""

    def __init__(self) -> None:
        self._fits: defaultdict[Shape, _Fit] = defaultdict(_Fit)
        self._solved: dict[Shape, Times] = {}

    def learn(self, pieces: Sequence[Piece], seconds: float) -> None:
        """Learn from a pass. Empty passes and mixed shapes teach nothing."""
        shapes, tokens = {piece.shape for piece in pieces}, sum(piece.tokens for piece in pieces)
        if len(shapes) == 1 and tokens and seconds > 0.0:
            (shape,) = shapes
            self._fits[shape].add(len(pieces), tokens, seconds)
            self._solved.pop(shape, None)

    def of(self, shape: Shape) -> Times | None:
        if shape not in self._solved and self._fits[shape].passes:
            self._solved[shape] = self._fits[shape].solved()
        return self._solved.get(shape)

    def seconds(self, pieces: Sequence[Piece]) -> float:
        known = [(piece, times) for piece in pieces if (times := self.of(piece.shape))]
        if not known:
            return 0.0
        first = max((times for _, times in known), key=lambda times: times.first)
        further = sum(times.further for _, times in known) - first.further
        return first.first + further + sum(times.token * piece.tokens for piece, times in known)


def joins(taken: Sequence[Piece], piece: Piece, times: PassTimes, patience: float) -> bool:
    """True if a further policy's groups join the pass with those ``taken``, at least one.

    ``patience`` is how many seconds others may wait longer. Pieces of unknown shape do not join: the first passes are
    measured separately.
    """
    if len(taken) >= MOST or any(times.of(each.shape) is None for each in (*taken, piece)):
        return False
    together = times.seconds([*taken, piece])
    alone = times.seconds([piece])
    saved = times.seconds(taken) + alone - together
    return saved >= GAIN * alone and together - times.seconds(taken[:1]) <= patience


def patience(intervals: Iterable[float]) -> float:
    """Seconds by which others may wait longer, from the known intervals between calls."""
    known = tuple(intervals)
    return max(LEAST_WAIT, WAIT * sum(known) / len(known)) if known else LEAST_WAIT


def moving_mean(mean: float, newest: float) -> float:
    """A moving mean with one more value."""
    return mean + NEWEST * (newest - mean)


# The training workers of one engine: calls in fair order, and the placement of policies' states.

# Waiting calls are kept as sums, so that the cost of a call does not grow with the number of tasks.


# Calls go to a trainer in fair order, and each is charged for its time. Calls of several policies share a pass if that
# gains (``fusing``).


@dataclass(eq=False)
class Call:
    """A call that waits or is in progress."""

    payer: Payer
    kind: str
    policy: str
    make: Callable[[Trainer], Awaitable[Any]]
    job: Job | None = None
    piece: Piece | None = None
    answer: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def urgent(self) -> bool:
        return self.kind != "accumulate"

    def succeed(self, result: Any) -> None:
        if not self.answer.done():
            self.answer.set_result(result)

    def fail(self, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError):
            self.answer.cancel()
        elif not self.answer.done():
            self.answer.set_exception(error)


Served = list[tuple[Call, Reservation]]


class SharedTrainer:
    """Shares out one trainer.

    With ``fuse``, several policies may share a pass; ``name`` is the worker's; ``now`` counts seconds.
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
        """``like`` describes its device; trainers with the same words give the same bits."""
        self.trainer = trainer
        self.name = name
        self.like = like
        self.died = asyncio.Event()
        self._line, self._ledger, self._fuse, self._now = line, ledger, fuse, now
        self._waiting: set[Call] = set()
        self._running: asyncio.Task[None] | None = None
        self._under_way: tuple[Call, ...] = ()
        self._begun = 0.0
        self._times = PassTimes()
        self._usual: dict[str, float] = {}
        self._asked: dict[str, float] = {}
        self._intervals: dict[str, float] = {}
        self._shares = PassShares(now)

    @property
    def clock(self) -> FairClock[str]:
        return self._line.clock

    @property
    def waiting(self) -> int:
        return len(self._line)

    @property
    def active(self) -> int:
        return int(self._running is not None)

    @property
    def remaining(self) -> float:
        if not self._under_way:
            return 0.0
        return max(0.0, self._together(self._under_way) - (self._now() - self._begun))

    @property
    def work(self) -> float:
        return self.remaining + sum(map(self._seconds, self._waiting))

    def _seconds(self, call: Call) -> float:
        if call.piece is None:
            return self._usual.get(call.kind, 0.0)
        times = self._times.of(call.piece.shape)
        return times.first + times.token * call.piece.tokens if times else 0.0

    def standings(self) -> list[Standing]:
        return self._line.standings()

    async def call(self, call: Call) -> Any:
        """Wait for this call's turn, make it, and return or raise the trainer's result.

        If the caller is cancelled, a call in progress continues to its end and is paid for.
        """
        self.take_in(call)
        try:
            return await call.answer
        finally:
            self.give(call)

    def take_in(self, call: Call) -> None:
        if self.died.is_set():
            raise RuntimeError(f"{self.name} serves nobody any more.")
        self._rhythm(call.policy)
        self._line.add(call.payer, call, call.urgent)
        self._waiting.add(call)
        self._shares.came(call.payer.tenant, call)
        self._dispatch()

    def give(self, call: Call) -> None:
        self._line.discard(call.payer, call, call.urgent)
        self._waiting.discard(call)
        self._shares.went(call.payer.tenant, call)

    def forget(self, policy: str) -> None:
        self._asked.pop(policy, None)
        self._intervals.pop(policy, None)

    def give_up(self, error: MarlaasError) -> None:
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

    def _next(self) -> Served:
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
        calls = [(call, reservation) for call, reservation in taken if not call.answer.done()]
        for call, reservation in taken:
            if call.answer.done():  # its caller is gone
                self._line.withdraw(reservation)
        if calls:
            await self._make_all(calls)
        for call, _ in taken:
            self._shares.went(call.payer.tenant, call)

    async def _make_all(self, calls: Served) -> None:
        began = self._now()
        try:
            if len(calls) > 1:
                jobs = tuple(call.job for call, _ in calls if call.job)
                results: Sequence[Any] = await self.trainer.accumulate_together(jobs)
            else:
                results = [await calls[0][0].make(self.trainer)]
        except BaseException as error:
            for call, reservation in calls:
                self._line.end(reservation, None)
                call.fail(error)
            if not isinstance(error, Exception):
                raise
            return
        finally:
            self._under_way = ()
        elapsed = self._now() - began
        self._learn([call for call, _ in calls], results, elapsed)
        self._shares.passed()
        for (call, reservation), result in zip(calls, _told(calls, results), strict=True):
            self._charge(call, reservation, result, elapsed)

    def _learn(self, calls: Sequence[Call], results: Sequence[Any], elapsed: float) -> None:
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


PAYS = 2.0
"""The wait must be shorter by this many times the seconds of a move: one for going there, one for coming back."""


@dataclass(frozen=True)
class Busy:
    """The load of a trainer."""

    work: float
    policies: int


def chosen(home: str, trainers: Mapping[str, Busy], move: float) -> str:
    """The trainer for a policy's call.

    ``home`` has the policy's state; empty: none has. ``move`` is the seconds of a move.
    """
    least = min(trainers, key=lambda name: (trainers[name].work, trainers[name].policies))
    if not home or trainers[home].work - trainers[least].work > PAYS * move:
        return least
    return home


# FlexMARL (arXiv 2602.09578) swaps training states in and out of devices; here a policy's state moves through the
# engine, with a checksum, if the wait for its trainer is longer than a move. All lines share one clock.

MOVE = 0.1
"""Seconds of a move before the first measurement."""


@dataclass(eq=False)
class _Home:
    trainer: SharedTrainer
    config: PolicyConfig
    alone: bool = False
    calls: int = 0


class TrainerPool:
    """Serves policies' calls by one or several trainers, each with its own line.

    With ``moves``, states move between them; ``log`` gets failed moves.
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
        self._like = trainers[0].like
        self._arrived = asyncio.Event()
        self._homes: dict[str, _Home] = {}
        self._lost: set[str] = set()
        self._moves, self._log, self._now = moves, log, now
        self._seconds: dict[int, float] = {}
        self._moving: dict[str, asyncio.Task[None]] = {}
        self._errands: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()
        self.moved = 0
        for trainer in trainers:
            self.take_in(trainer)

    @property
    def trainers(self) -> dict[str, SharedTrainer]:
        return dict(self._trainers)

    def standings(self) -> list[Standing]:
        return together(trainer.standings() for trainer in self._trainers.values())

    def config(self, policy: str) -> PolicyConfig | None:
        home = self._homes.get(policy)
        return home.config if home else None

    async def open(self, call: Call, config: PolicyConfig, alone: bool = False) -> Any:
        """Open a policy at the trainer with the least work, in place of an older one.

        With ``alone``, at one that gives the same bits as the first. Raises the trainer's errors.
        """
        policy, before = call.policy, self._homes.get(call.policy)
        await self._still(policy)
        while not (able := self._able(alone)):
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
        """Make a call of an open policy.

        Raises the trainer's errors, and ``StateLost`` if its trainer died and others live.
        """
        home = self._homes.get(call.policy)
        if home is None:
            if call.policy in self._lost:
                raise _lost(call.policy)
            return await next(iter(self._trainers.values())).call(call)
        home.calls += 1
        try:
            await self._place(home, call.policy)
            return await self._at(home, call)
        finally:
            home.calls -= 1

    async def close(self, policy: str) -> None:
        home = self._homes.pop(policy, None)
        self._lost.discard(policy)
        await self._still(policy)
        if home is not None:
            await self._close(home.trainer, policy)

    def lose(self, name: str) -> None:
        trainer = self._trainers.pop(name)
        for policy in [policy for policy, home in self._homes.items() if home.trainer is trainer]:
            del self._homes[policy]
            self._lost.add(policy)
        trainer.give_up(StateLost(f"Worker {name} died, which had the training state of this policy."))

    def end(self) -> None:
        self._ended.set()

    def take_in(self, trainer: SharedTrainer) -> None:
        self._trainers[trainer.name] = trainer
        arrived, self._arrived = self._arrived, asyncio.Event()
        arrived.set()

    async def _at(self, home: _Home, call: Call) -> Any:
        if home.trainer.died.is_set():
            raise _lost(call.policy)
        try:
            return await home.trainer.call(call)
        except StateLost:
            raise
        except WorkerDied as error:
            await self._noticed(home.trainer)
            raise _lost(call.policy) from error

    async def _noticed(self, trainer: SharedTrainer) -> None:
        """Wait until the supervisor replaces only this dead trainer.

        For the last one, raise at once: then all workers restart.
        """
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
        return {name: busy for name, busy in self._busy().items() if not alone or self._suits(name)}

    def _suits(self, name: str) -> bool:
        return self._trainers[name].like == self._like

    async def _place(self, home: _Home, policy: str) -> None:
        """Move the policy's state before its call if that pays; in any case, wait until it does not move."""
        await self._still(policy)
        if not self._moves or home.calls > 1 or len(self._trainers) == 1 or home.trainer.died.is_set():
            return
        name = chosen(home.trainer.name, self._able(home.alone), self._move_seconds(home))
        if name != home.trainer.name:
            move = self._moving[policy] = asyncio.ensure_future(self._move(home, policy, self._trainers[name]))
            move.add_done_callback(_heard)
            await asyncio.shield(move)  # a move that has begun is finished, even without waiters

    async def _still(self, policy: str) -> None:
        if moving := self._moving.get(policy):
            await asyncio.wait((moving,))
            if self._moving.get(policy) is moving:
                del self._moving[policy]

    async def _move(self, home: _Home, policy: str, there: SharedTrainer) -> None:
        """Move a state; if the other trainer cannot take it, it stays. Raises its own trainer's errors."""
        here, begun = home.trainer, self._now()
        try:
            moved = await here.trainer.get_state(policy)
        except WorkerDied as error:
            await self._noticed(here)
            raise _lost(policy) from error
        try:
            await there.trainer.set_state(policy, moved)
        except Exception as error:
            self._log(f"The state of policy {policy} could not move from {here.name} to {there.name}: {error}")
            return
        if self._homes.get(policy) is not home or there.died.is_set():
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
        errand = asyncio.ensure_future(work)
        self._errands.add(errand)
        errand.add_done_callback(self._errands.discard)
        return errand


def _heard(move: asyncio.Task[None]) -> None:
    if not move.cancelled():
        move.exception()


def _lost(policy: str) -> StateLost:
    return StateLost(
        f"The worker died that had the training state of policy {policy}.", "It goes on from its last commit."
    )


class TaskTrainer:
    """One task's view of the trainers: implements ``trainer.protocol.PolicyTrainer``, charged to the task.

    With ``alone``, its groups never share a pass and its policies stay on alike processors, so that every run has the
    same bits.
    """

    def __init__(self, pool: TrainerPool, payer: Payer, alone: bool) -> None:
        self._pool = pool
        self._payer = payer
        self._alone = alone

    async def open(self, policy: str, config: PolicyConfig, path: str, resume: bool) -> StepResult:
        call = Call(self._payer, "open", policy, lambda trainer: trainer.open(policy, config, path, resume))
        result: StepResult = await self._pool.open(call, config, self._alone)
        return result

    async def accumulate(
        self, policy: str, groups: tuple[TrainGroup, ...], probe: Probe | None = None, path: str = ""
    ) -> GroupStats:
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
        call = Call(self._payer, "step", policy, lambda trainer: trainer.step(policy, path))
        result: StepResult = await self._pool.call(call)
        return result

    async def close(self, policy: str) -> None:
        """At once: it costs nothing and frees memory."""
        await self._pool.close(policy)
