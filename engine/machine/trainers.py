"""One engine's trainers: fair order, shared passes, places of states."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..clock import monotonic
from ..errors import MarlaasError, StateLost, WorkerDied
from ..fairness.line import TRAINING, FairClock, Ledger, Line, Payer, Reservation, Standing, together
from ..racing import until_first
from ..trainer.advantages import pass_tokens
from ..trainer.protocol import GroupStats, Job, PolicyConfig, Probe, Refused, StepResult, Trainer, TrainGroup

PASS_TOKENS = 4096
"""Longer passes hardly feel the saved fixed time: eight policies of the shipped base took 0.50 of the time with 64
tokens each, 0.82 with 256, 0.91 with 512 (one core)."""
WAIT = 0.25
"""Share of its usual absence that a tenant behind may wait for others' passes."""
AHEAD = 1.15
"""A tenant with this many times as much service; passes even out a tenth or two."""
KEPT = 0.97
"""Per pass."""
NEWEST = 0.25
PAYS = 2.0
"""Moves that a longer wait is worth: there and back."""
MOVE = 0.1
"""Seconds, unmeasured."""


def moving_mean(mean: float, newest: float) -> float:
    """A moving mean with one more value."""
    return mean + NEWEST * (newest - mean)


@dataclass(eq=False)
class Call:
    """A call that waits or is in progress."""

    payer: Payer
    kind: str
    policy: str
    make: Callable[[Trainer], Awaitable[Any]]
    job: Job | None = None
    """In a shared pass; None: may not share."""
    tokens: int = 0
    answer: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def urgent(self) -> bool:
        return self.kind != "accumulate"

    def fail(self, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError):
            self.answer.cancel()
        elif not self.answer.done():
            self.answer.set_exception(error)


Served = list[tuple[Call, Reservation]]


@dataclass
class _Tenant:
    calls: set[Call] = field(default_factory=set)
    seconds: float = 0.0
    """Recent service by weight."""
    left: float | None = None
    absence: float | None = None
    """Mean seconds until its next call; 0 while another is here."""


class SharedTrainer:
    """Shares out one trainer.

    With ``fuse``, up to half of its policies share a pass of at most ``PASS_TOKENS``; the next fills the time until
    they return. For weights to count, a tenant ahead lengthens passes by little while others are behind. Equal
    ``like``: equal bits.
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
        self.trainer = trainer
        self.name = name
        self.like = like
        self.died = asyncio.Event()
        self.clock: FairClock[str] = line.clock
        self._line, self._ledger, self._fuse, self._now = line, ledger, fuse, now
        self._running: asyncio.Task[None] | None = None
        self._under_way: list[Call] = []
        self._begun = 0.0
        self._pace: dict[str, float] = {}
        """Moving means of seconds, by the kind of call: for a token of groups, else for a call."""
        self._tenants: defaultdict[str, _Tenant] = defaultdict(_Tenant)
        self.policies: set[str] = set()

    @property
    def waiting(self) -> int:
        return len(self._line)

    @property
    def active(self) -> int:
        return int(self._running is not None)

    @property
    def work(self) -> float:
        """Seconds until it is idle."""
        rest = math.fsum(map(self._seconds, self._under_way)) - (self._now() - self._begun)
        return max(0.0, rest) + math.fsum(map(self._seconds, self._line.items()))

    def _seconds(self, call: Call) -> float:
        return self._pace.get(call.kind, 0.0) * max(1, call.tokens)

    def standings(self) -> list[Standing]:
        return self._line.standings()

    async def call(self, call: Call) -> Any:
        """Raises the trainer's errors.

        A cancelled caller's call in progress runs to its end and is charged.
        """
        if self.died.is_set():
            raise RuntimeError(f"{self.name} serves nobody any more.")
        self._line.add(call.payer, call, call.urgent)
        tenant = self._tenants[call.payer.tenant]
        if tenant.calls or tenant.left is not None:
            absence = 0.0 if tenant.calls or tenant.left is None else self._now() - tenant.left
            tenant.absence = absence if tenant.absence is None else moving_mean(tenant.absence, absence)
        tenant.calls.add(call)
        self._dispatch()
        try:
            return await call.answer
        finally:
            self._line.discard(call.payer, call, call.urgent)
            self._leave(call)

    def give_up(self, error: MarlaasError) -> None:
        self.died.set()
        while self._line:
            self._line.take()[1].fail(error)

    def _leave(self, call: Call) -> None:
        tenant = self._tenants[call.payer.tenant]
        if call in tenant.calls:
            tenant.calls.remove(call)
            tenant.left = self._now()

    def _patience(self, payer: Payer) -> float:
        """Seconds by which a call may lengthen a pass."""
        enough = self._tenants[payer.tenant].seconds / AHEAD
        behind = (tenant for tenant in self._tenants.values() if tenant.seconds < enough)
        absences = (
            max(tenant.absence, 0.0 if tenant.calls or tenant.left is None else self._now() - tenant.left)
            for tenant in behind
            if tenant.absence is not None
        )
        return WAIT * min(absences, default=math.inf)

    def _dispatch(self) -> None:
        if self._line and self._running is None:
            taken = self._next()
            self._under_way, self._begun = [call for call, _ in taken], self._now()
            self._running = asyncio.ensure_future(self._make(taken))
            self._running.add_done_callback(self._made)

    def _made(self, _: asyncio.Task[None]) -> None:
        self._running = None
        self._dispatch()

    def _next(self) -> Served:
        taken, further = [self._take()], 0
        first = taken[0][0]
        while self._fuse and first.job and self._line and 2 * len(taken) < len(self.policies):
            follower = self._line.peek()
            further += follower.tokens
            long = further * self._pace.get(follower.kind, 0.0) > self._patience(follower.payer)
            if follower.job is None or long or first.tokens + further > PASS_TOKENS:
                break
            taken.append(self._take())
        return taken

    def _take(self) -> tuple[Call, Reservation]:
        payer, call = self._line.take()
        return call, self._line.begin(payer, call.kind)

    async def _make(self, taken: Served) -> None:
        for call, reservation in taken:
            if call.answer.done():  # its caller is gone
                self._line.withdraw(reservation)
        calls = [pair for pair in taken if not pair[0].answer.done()]
        if not calls:
            self._under_way = []
            return
        began = self._now()
        jobs = tuple(call.job for call, _ in calls if call.job)
        try:
            if len(calls) > 1:
                results: Sequence[Any] = await self.trainer.accumulate_together(jobs)
            else:
                results = [await calls[0][0].make(self.trainer)]
        except BaseException as error:
            self._under_way = []
            for call, reservation in calls:
                self._line.end(reservation, None)
                call.fail(error)
            if not isinstance(error, Exception):
                raise
        else:
            self._under_way = []
            self._settle(calls, results, self._now() - began)
        for call, _ in taken:
            self._leave(call)

    def _settle(self, calls: Served, results: Sequence[Any], elapsed: float) -> None:
        """``elapsed`` is for results without seconds."""
        groups = [result for result in results if isinstance(result, GroupStats)]
        spent = math.fsum(result.seconds for result in groups)
        units, kind = sum(max(1, call.tokens) for call, _ in calls), calls[0][0].kind
        if not any(isinstance(result, Refused) for result in results):
            pace = (spent if groups else elapsed) / units
            self._pace[kind] = moving_mean(self._pace.get(kind, pace), pace)
        for tenant in self._tenants.values():
            tenant.seconds *= KEPT
        passed = any(call.tokens for call, _ in calls)
        for (call, reservation), result in zip(calls, results, strict=True):
            if isinstance(result, Refused):
                self._line.withdraw(reservation)
                call.fail(result.error())
                continue
            answer, tokens = result, 0
            seconds = result.seconds if isinstance(result, GroupStats | StepResult) else elapsed
            if isinstance(result, GroupStats):
                share = seconds / spent if spent else 1 / len(calls)
                answer, tokens = replace(result, calls=share if passed else 0.0), result.measured
                seconds += result.step.seconds if result.step else 0.0
            self._line.end(reservation, round(1e6 * seconds))
            self._tenants[call.payer.tenant].seconds += seconds / self._line.weight(call.payer.tenant)
            self._ledger.training(call.payer.task, tokens, seconds, self.name)
            if not call.answer.done():
                call.answer.set_result(answer)


@dataclass(eq=False)
class _Home:
    trainer: SharedTrainer
    config: PolicyConfig
    alone: bool = False
    calls: int = 0


class TrainerPool:
    """Serves policies by several trainers; lines share a clock.

    A state moves, with a checksum, if the wait exceeds a move there and back (as FlexMARL swaps states, arXiv
    2602.09578). ``log``: failed moves.
    """

    def __init__(
        self,
        trainers: Iterable[SharedTrainer],
        log: Callable[[str], None] = lambda _: None,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self.trainers = {trainer.name: trainer for trainer in trainers}
        first = next(iter(self.trainers.values()))
        self.clock = first.clock
        self._like = first.like
        self._arrived = asyncio.Event()
        self._homes: dict[str, _Home] = {}
        self._lost: set[str] = set()
        self._log, self._now = log, now
        self.move_seconds = MOVE
        """Moving mean of the seconds of a move."""
        self._moving: dict[str, asyncio.Task[None]] = {}
        self._errands: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()
        self.moved = 0

    def standings(self) -> list[Standing]:
        return together(trainer.standings() for trainer in self.trainers.values())

    def config(self, policy: str) -> PolicyConfig | None:
        home = self._homes.get(policy)
        return home.config if home else None

    async def open(self, call: Call, config: PolicyConfig, alone: bool = False) -> Any:
        """Replaces an older policy, at the least busy trainer.

        ``alone``: one with the first's bits. Raises the trainer's errors.
        """
        policy, before = call.policy, self._homes.get(call.policy)
        await self._settled(policy)
        while (here := self._idlest(alone)) is None:
            await until_first(self._arrived.wait(), self._ended.wait())
            if self._ended.is_set():
                raise WorkerDied("The trainer died that gives this policy's bits.")
        self._homes[policy] = home = _Home(here, config, alone, calls=1)
        self._lost.discard(policy)
        if before and before.trainer is not here:
            self._later(self._close(before.trainer, policy))
        try:
            return await self._at(home, call)
        finally:
            home.calls -= 1

    async def call(self, call: Call) -> Any:
        """Raises the trainer's errors; ``StateLost`` if its trainer died and others live."""
        home = self._homes.get(call.policy)
        if home is None:
            if call.policy in self._lost:
                raise _lost(call.policy)
            return await next(iter(self.trainers.values())).call(call)
        home.calls += 1
        try:
            await self._place(home, call.policy)
            return await self._at(home, call)
        finally:
            home.calls -= 1

    async def close(self, policy: str) -> None:
        home = self._homes.pop(policy, None)
        self._lost.discard(policy)
        await self._settled(policy)
        if home is not None:
            await self._close(home.trainer, policy)

    def lose(self, name: str) -> None:
        trainer = self.trainers.pop(name)
        for policy in [policy for policy, home in self._homes.items() if home.trainer is trainer]:
            del self._homes[policy]
            self._lost.add(policy)
        trainer.give_up(StateLost(f"Worker {name} died, which had the training state of this policy."))

    def end(self) -> None:
        self._ended.set()

    def take_in(self, trainer: SharedTrainer) -> None:
        self.trainers[trainer.name] = trainer
        arrived, self._arrived = self._arrived, asyncio.Event()
        arrived.set()

    async def _at(self, home: _Home, call: Call) -> Any:
        if home.trainer.died.is_set():
            raise _lost(call.policy)
        if self._homes.get(call.policy) is home:  # else it was closed meanwhile
            home.trainer.policies.add(call.policy)
        try:
            return await home.trainer.call(call)
        except StateLost:
            raise
        except WorkerDied as error:
            await self._noticed(home.trainer)
            raise _lost(call.policy) from error

    async def _noticed(self, trainer: SharedTrainer) -> None:
        """Wait for a successor. The last trainer raises at once: all workers restart."""
        if list(self.trainers.values()) != [trainer]:
            await until_first(trainer.died.wait(), self._ended.wait())
        if not trainer.died.is_set():
            raise WorkerDied(f"Worker {trainer.name} died.")

    def _idlest(self, alone: bool) -> SharedTrainer | None:
        able = (trainer for trainer in self.trainers.values() if not alone or trainer.like == self._like)
        return min(able, key=lambda trainer: (trainer.work, len(trainer.policies)), default=None)

    async def _place(self, home: _Home, policy: str) -> None:
        await self._settled(policy)
        if home.calls > 1 or len(self.trainers) == 1 or home.trainer.died.is_set():
            return
        there = self._idlest(home.alone)
        if there is not None and home.trainer.work - there.work > PAYS * self.move_seconds:
            move = self._moving[policy] = asyncio.ensure_future(self._move(home, policy, there))
            move.add_done_callback(lambda move: move.cancelled() or move.exception())
            await asyncio.shield(move)  # a move that has begun is finished, even without waiters

    async def _settled(self, policy: str) -> None:
        if moving := self._moving.get(policy):
            await asyncio.wait((moving,))
            if self._moving.get(policy) is moving:
                del self._moving[policy]

    async def _move(self, home: _Home, policy: str, there: SharedTrainer) -> None:
        """The state stays if the other trainer fails. Raises its own trainer's errors."""
        here, begun = home.trainer, self._now()
        try:
            state = await here.trainer.get_state(policy)
        except WorkerDied as error:
            await self._noticed(here)
            raise _lost(policy) from error
        try:
            await there.trainer.set_state(policy, state)
        except Exception as error:
            self._log(f"The state of policy {policy} could not move from {here.name} to {there.name}: {error}")
            return
        if self._homes.get(policy) is not home or there.died.is_set():
            self._later(self._close(there, policy))
            return
        home.trainer = there
        self._later(self._close(here, policy))
        self.moved += 1
        self.move_seconds = moving_mean(self.move_seconds, self._now() - begun)

    async def _close(self, trainer: SharedTrainer, policy: str) -> None:
        trainer.policies.discard(policy)
        with contextlib.suppress(WorkerDied):
            await trainer.trainer.close(policy)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        errand = asyncio.ensure_future(work)
        self._errands.add(errand)
        errand.add_done_callback(self._errands.discard)


def _lost(policy: str) -> StateLost:
    return StateLost(
        f"The worker died that had the training state of policy {policy}.", "It goes on from its last commit."
    )


class TaskTrainer:
    """One task's ``trainer.protocol.PolicyTrainer``.

    ``alone``: no shared passes, alike processors, equal bits.
    """

    def __init__(self, pool: TrainerPool, payer: Payer, alone: bool) -> None:
        self._pool, self._payer, self._alone = pool, payer, alone

    async def open(self, policy: str, config: PolicyConfig, path: str, resume: bool) -> StepResult:
        call = Call(self._payer, "open", policy, lambda trainer: trainer.open(policy, config, path, resume))
        result: StepResult = await self._pool.open(call, config, self._alone)
        return result

    async def accumulate(
        self, policy: str, groups: tuple[TrainGroup, ...], probe: Probe | None = None, path: str = ""
    ) -> GroupStats:
        config = self._pool.config(policy)
        tokens = pass_tokens(groups, config) if config else 0
        tokens += sum(len(sequence) for sequence, _ in probe.sequences) if probe else 0
        job = Job(policy, groups, probe, path) if config and not self._alone else None
        call = Call(
            self._payer,
            "accumulate",
            policy,
            lambda trainer: trainer.accumulate(policy, groups, probe, path),
            job,
            tokens,
        )
        stats: GroupStats = await self._pool.call(call)
        return stats

    async def step(self, policy: str, path: str) -> StepResult:
        call = Call(self._payer, "step", policy, lambda trainer: trainer.step(policy, path))
        result: StepResult = await self._pool.call(call)
        return result

    async def close(self, policy: str) -> None:
        """At once: costs nothing and frees memory."""
        await self._pool.close(policy)
