"""One trainer, many policies: tasks' calls go to it in fair order, and each is charged for the time that it took.

``SharedTrainer`` has the worker and the line before it; a ``TaskTrainer`` is one task's view of it. Calls of several
tasks go to the worker in one pass where that costs nobody more than a moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any

from ..fairness import Ledger, Line, Payer, Serving, Standing
from ..training import GroupStats, Job, PolicyConfig, Refused, StepResult, Trainer, TrainGroup
from ..trajectories import Logprobs, Tokens

FUSED_JOBS = 8
"""Most policies in one pass: more gain nothing."""
FUSED_SECONDS = 0.05
"""Seconds that such a pass may be expected to take: a tenant that is behind and calls meanwhile waits for its end."""
FUSED_TOKENS = 1024
"""Tokens of such a pass, until the time of one was measured."""
NEWEST = 0.25
"""Weight of the newest call in the moving mean of the tokens that such a pass may hold."""


@dataclass(eq=False)
class Call:
    """A call that waits or is under way."""

    payer: Payer
    kind: str
    """The trainer's method."""
    make: Callable[[], Awaitable[Any]]
    job: Job | None = None
    """The job of an accumulation that may share its pass with other policies."""
    answer: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def urgent(self) -> bool:
        """Whether it goes before its tenant's accumulations."""
        return self.kind != "accumulate"

    @property
    def tokens(self) -> int:
        """Tokens of its groups, prompts included; 0 without a job."""
        return sum(len(sequence.tokens) for group in self.job.groups for sequence in group.sequences) if self.job else 0

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


Served = list[tuple[Call, Serving]]


class SharedTrainer:
    """Shares out the trainer. ``fuse``: whether several policies may be trained in one pass."""

    def __init__(self, trainer: Trainer, line: Line[Call], ledger: Ledger, fuse: bool = False) -> None:
        self.trainer = trainer
        self._line = line
        self._ledger = ledger
        self._fuse = fuse
        self._running: asyncio.Task[None] | None = None
        self._fused_tokens = float(FUSED_TOKENS)
        """Tokens of a pass that takes ``FUSED_SECONDS``."""

    @property
    def waiting(self) -> int:
        """Calls that the worker does not have yet."""
        return len(self._line)

    @property
    def active(self) -> int:
        """Calls that the worker has."""
        return int(self._running is not None)

    def standings(self) -> list[Standing]:
        """Where tenants stand in the line, in microseconds."""
        return self._line.standings()

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
        if self._line and self._running is None:
            self._running = asyncio.ensure_future(self._make(self._next()))
            self._running.add_done_callback(self._made)

    def _made(self, _: asyncio.Task[None]) -> None:
        self._running = None
        self._dispatch()

    def _next(self) -> Served:
        """Take the call whose turn it is, and those after it that may share its pass."""
        first = self._take()
        calls, tokens = [first], first[0].tokens
        while self._fuse and first[0].job and self._line and len(calls) < FUSED_JOBS:
            follower = self._line.peek()
            tokens += follower.tokens
            if follower.job is None or tokens > self._fused_tokens:
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
            for call, serving in calls:
                self._line.end(serving, None)
                call.fail(error)
            if not isinstance(error, Exception):
                raise
            return
        elapsed = monotonic() - began
        for (call, serving), result in zip(calls, results, strict=True):
            self._charge(call, serving, result, elapsed)
        self._learn([call for call, _ in calls], results)

    async def _results(self, calls: list[Call]) -> Sequence[Any]:
        jobs = tuple(call.job for call in calls if call.job)
        if len(calls) > 1:
            return await self.trainer.accumulate_together(jobs)
        return [await calls[0].make()]

    def _learn(self, calls: Sequence[Call], results: Sequence[Any]) -> None:
        """Adjust how many tokens may go into a pass to how long the last ones took."""
        made = [
            (call.tokens, each.seconds)
            for call, each in zip(calls, results, strict=True)
            if isinstance(each, GroupStats)
        ]
        tokens, seconds = sum(each for each, _ in made), sum(each for _, each in made)
        if tokens and seconds > 0:
            self._fused_tokens += NEWEST * (FUSED_SECONDS * tokens / seconds - self._fused_tokens)

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


class TaskTrainer:
    """Implements ``training.protocol.PolicyTrainer``. ``alone``: its groups never share a pass with other policies'."""

    def __init__(self, shared: SharedTrainer, payer: Payer, alone: bool) -> None:
        self._shared = shared
        self._trainer = shared.trainer
        self._payer = payer
        self._alone = alone

    async def open(self, policy: str, config: PolicyConfig, path: str, resume: bool) -> StepResult:
        """See the protocol."""
        result: StepResult = await self._call("open", partial(self._trainer.open, policy, config, path, resume))
        return result

    async def accumulate(self, policy: str, groups: tuple[TrainGroup, ...]) -> GroupStats:
        """See the protocol."""
        job = None if self._alone else Job(policy, groups)
        stats: GroupStats = await self._call("accumulate", partial(self._trainer.accumulate, policy, groups), job)
        return stats

    async def step(self, policy: str, path: str) -> StepResult:
        """See the protocol."""
        result: StepResult = await self._call("step", partial(self._trainer.step, policy, path))
        return result

    async def score(self, policy: str, tokens: Tokens, start: int, temperature: float) -> Logprobs:
        """See the protocol."""
        scores: Logprobs = await self._call("score", partial(self._trainer.score, policy, tokens, start, temperature))
        return scores

    async def close(self, policy: str) -> None:
        """See the protocol; at once, for it costs nothing and frees memory."""
        await self._trainer.close(policy)

    async def _call(self, kind: str, make: Callable[[], Awaitable[Any]], job: Job | None = None) -> Any:
        return await self._shared.call(Call(self._payer, kind, make, job))
