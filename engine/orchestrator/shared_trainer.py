"""One trainer, many policies: their calls go to it in fair order, and each is paid for by what it took.

Calls of all tasks flow in, at most ``AHEAD`` of them are with the worker, and the next is that of the tenant that is
behind (``fairness/line``). What a call cost is measured in seconds, not in tokens: the worker makes one call after the
other, so that each call's seconds are its own, and what they pay for includes optimizer steps, files and scores.

A step, a score or an opening goes before its tenant's own groups, for a whole task waits for it, but never before
another tenant's. Accumulations that follow each other in fair order may go as one call, where the settings say so.
Knows nothing of what the calls compute.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from ..fairness.ledger import Ledger
from ..fairness.line import Line, Payer, Serving
from ..training.protocol import GroupStats, Job, Refused, StepResult, Trainer

AHEAD = 2
"""Calls with the worker: the one that it computes, and one so that it need not wait for the next."""
FUSED_JOBS = 8
"""Policies of one pass, at most: more gain nothing."""
FUSED_TOKENS = 8192
"""Of their groups, at most: nobody waits long because others are trained together."""


@dataclass(eq=False)
class Call:
    """A call that waits or is under way."""

    payer: Payer
    kind: str
    """The trainer's method."""
    make: Callable[[], Awaitable[Any]]
    job: Job | None = None
    """Of an accumulation that may share its pass with other policies'."""
    answer: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def urgent(self) -> bool:
        """Whether it goes before its tenant's accumulations."""
        return self.kind != "accumulate"

    @property
    def tokens(self) -> int:
        """Of its groups, prompts included."""
        return sum(len(sequence.tokens) for group in self.job.groups for sequence in group.sequences) if self.job else 0

    def succeed(self, result: Any) -> None:
        """Answer its caller, unless that is gone."""
        if not self.answer.done():
            self.answer.set_result(result)

    def fail(self, error: BaseException) -> None:
        """Raise ``error`` in its caller, unless that is gone."""
        if isinstance(error, asyncio.CancelledError):
            self.answer.cancel()
        elif not self.answer.done():
            self.answer.set_exception(error)


Served = list[tuple[Call, Serving]]


class SharedTrainer:
    """Hands out the trainer. ``fuse``: whether policies may be trained in one pass, which the trainer then offers."""

    def __init__(self, trainer: Trainer, line: Line[Call], ledger: Ledger, fuse: bool = False) -> None:
        self.trainer = trainer
        self._line = line
        self._ledger = ledger
        self._fuse = fuse
        self._running: set[asyncio.Task[None]] = set()
        self._answered = 0.0
        """When the worker ended its last call."""

    @property
    def waiting(self) -> int:
        """Calls that the worker does not have yet."""
        return len(self._line)

    @property
    def active(self) -> int:
        """Calls that the worker has."""
        return len(self._running)

    async def call(self, call: Call) -> Any:
        """Wait until it is this call's turn, make it, and return or raise what the trainer does.

        Where the caller is cancelled meanwhile, a call that the worker has goes on to its end and is paid for.
        """
        self._line.add(call.payer, call, call.urgent)
        self._dispatch()
        try:
            return await call.answer
        finally:
            self._line.discard(call.payer, call, call.urgent)

    def _dispatch(self) -> None:
        while self._line and len(self._running) < AHEAD:
            task = asyncio.ensure_future(self._make(self._next()))
            self._running.add(task)
            task.add_done_callback(self._made)

    def _made(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._dispatch()

    def _next(self) -> Served:
        """The call whose turn it is; with it those that follow and may share its pass."""
        first = self._take()
        calls, tokens = [first], first[0].tokens
        while self._fuse and first[0].job and self._line and len(calls) < FUSED_JOBS:
            follower = self._line.peek()
            tokens += follower.tokens
            if follower.job is None or tokens > FUSED_TOKENS:
                break
            calls.append(self._take())
        return calls

    def _take(self) -> tuple[Call, Serving]:
        payer, call = self._line.take()
        return call, self._line.begin(payer, call.kind)

    async def _make(self, taken: Served) -> None:
        calls: Served = []
        for call, serving in taken:
            if call.answer.done():  # its caller is gone
                self._line.withdraw(serving)
            else:
                calls.append((call, serving))
        if calls:
            await self._make_all(calls)

    async def _make_all(self, calls: Served) -> None:
        began = monotonic()
        try:
            results = await self._results([call for call, _ in calls])
        except BaseException as error:
            self._answered = monotonic()
            for call, serving in calls:
                self._line.end(serving, None)
                call.fail(error)
            if not isinstance(error, Exception):
                raise
            return
        elapsed, self._answered = monotonic() - max(began, self._answered), monotonic()
        for (call, serving), result in zip(calls, results, strict=True):
            self._charge(call, serving, result, elapsed)

    async def _results(self, calls: list[Call]) -> Sequence[Any]:
        jobs = tuple(call.job for call in calls if call.job)
        if len(calls) > 1:
            return await self.trainer.accumulate_together(jobs)
        return [await calls[0].make()]

    def _charge(self, call: Call, serving: Serving, result: Any, elapsed: float) -> None:
        if isinstance(result, Refused):
            self._line.withdraw(serving)
            call.fail(result.error())
            return
        seconds = result.seconds if isinstance(result, GroupStats | StepResult) else elapsed
        self._line.end(serving, round(1e6 * seconds))
        tokens = result.measured if isinstance(result, GroupStats) else 0
        self._ledger.training(call.payer.task, tokens, seconds)
        call.succeed(result)
