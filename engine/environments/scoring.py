"""The scoring processes of one plugin version: none until something is to be scored, then as few as will do.

Their number has the same bounds as that of the processes that play, and grows while requests wait. Each episode that is
scored, or group that is compared, has an outcome in time, whatever the author's function does. A process has one
request at a time, so the one that it dies of is known. Episodes are played in other processes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TypeVar

from marlaas.plugins.sandbox_supervisor import wall_limit

from ..trajectories import Failure
from .budget import ProcessBudget
from .process.child import BrokenPlugin, Child, Owner
from .process.wire import Described
from .protocol import EpisodeOutcome, Ranking, Unscored
from .recorder import Recorder

PATIENCE = 0.25
"""Seconds that a request waits for a process before it gets a further one."""
GRACE = 0.5
"""Seconds beyond the wall limit until a function is interrupted, and again until its process is killed."""
REST = 60.0
"""Seconds after which processes beyond the first end, unless they are needed just then."""
TRIES = 2
"""Of a request whose process dies: what it died of need not have been the request."""

Verdict = TypeVar("Verdict", EpisodeOutcome, Ranking | EpisodeOutcome)
Ask = Callable[[Child], Awaitable[Verdict]]


class _Ended(Exception):
    """The processes were ended before a request had one."""


class ScoringPool:
    """The scoring processes; one that died is replaced when the next request comes."""

    def __init__(
        self,
        start: Callable[[Owner], Awaitable[Child]],
        reap: Callable[[Child], None],
        tell: Callable[[Failure], None],
        most: int,
        budget: ProcessBudget,
    ) -> None:
        """``start`` starts a process of the version, ``reap`` sees a dead one off, ``tell`` hears of what died.
        ``most``: processes at the same time."""
        self._start = start
        self._reap = reap
        self._tell = tell
        self._alive: set[Child] = set()
        self._idle: list[Child] = []
        self._most = most
        self._budget = budget
        self._size = 1
        """Requests that may have a process at the same time."""
        self._busy = 0
        """Requests that have one, or are about to."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._ends = 0
        self._ended = EpisodeOutcome("error")
        """What becomes of requests that the last end came upon."""
        self._rest: asyncio.TimerHandle | None = None
        budget.join(self)

    @property
    def pids(self) -> list[int]:
        """Ids of the processes."""
        return [child.pid for child in self._alive]

    @property
    def further(self) -> int:
        """See ``budget.Pool``."""
        return self._size - 1

    async def outcome(self, found: Described, played: EpisodeOutcome | Unscored, recorder: Recorder) -> EpisodeOutcome:
        """How an episode ended: with its score if it wants one, with task and transcript where it may be ranked."""
        outcome = await self._score(found, played, recorder) if isinstance(played, Unscored) else played
        return replace(outcome, task=played.task, transcript=recorder.transcript) if found.ranked else outcome

    async def rank(self, found: Described, members: Sequence[EpisodeOutcome]) -> Ranking | EpisodeOutcome:
        """What the ranking makes of the members, or how it failed."""

        async def ask(child: Child) -> Ranking | EpisodeOutcome:
            verdict = await child.rank(found.name, members, found.score_timeout)
            if isinstance(verdict, Ranking) and len(verdict.rewards) != len(members):
                return EpisodeOutcome("error", failure=Failure("its process sent rewards for another group"))
            return verdict

        return await self._judge(found.score_timeout, ask)

    def end(self, reason: str, cut: bool = False) -> None:
        """End the processes, what they are at (``cut`` as in ``Child.kill``) and what waits for one; a later request
        starts one anew."""
        self._ends += 1
        self._ended = EpisodeOutcome("cancelled" if cut else "error", failure=Failure(reason))
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
        for child in self._alive:
            child.kill(reason, cut)
            self._reap(child)
        self._alive.clear()
        self._idle.clear()
        self._size = 1  # this pool may exist for long, and others want the cores

    async def _score(self, found: Described, played: Unscored, recorder: Recorder) -> EpisodeOutcome:
        if recorder.too_long:
            return EpisodeOutcome("error", failure=Failure("more was said in the episode than can be scored"))
        transcript, seconds = recorder.transcript, found.score_timeout
        scored = await self._judge(seconds, lambda child: child.score(found.name, played, transcript, seconds))
        return replace(scored, metrics=played.metrics, paid=played.paid, seconds=played.seconds + scored.seconds)

    async def _judge(self, seconds: float, ask: Ask[Verdict]) -> Verdict | EpisodeOutcome:
        """Ask a process for its verdict, and ask another one where the process died before its time was up."""
        ends, tries = self._ends, 0
        while True:
            tries += 1
            last = tries == TRIES
            try:
                async with self._process(ends) as child:
                    verdict = await _within(seconds, child, ask)
                    failed = isinstance(verdict, EpisodeOutcome) and verdict.status == "error"
                    if last or not failed or child.dead is None or self._ends != ends:
                        return verdict
            except _Ended:
                return self._ended
            except BrokenPlugin as error:
                if last or not error.died:
                    return EpisodeOutcome("error", failure=error.failure)
            except ValueError as error:
                return EpisodeOutcome("error", failure=Failure(f"too much was said to be scored: {error}"))

    @asynccontextmanager
    async def _process(self, ends: int) -> AsyncIterator[Child]:
        """A process for one request alone. Raises ``_Ended`` where the processes were ended since ``ends`` was read."""
        await self._turn()
        child: Child | None = None
        try:
            child = await self._started(ends)
            yield child
        finally:
            if child is not None:
                self._put_back(child)
            self._busy -= 1
            self._hand_out()
            if self._size > 1 and self._rest is None:
                self._rest = asyncio.get_running_loop().call_later(REST, self._shrink)

    async def _turn(self) -> None:
        """Wait until a process is free or may be started: one more when all were busy for long."""
        if self._busy < self._size and not self._waiting:
            self._busy += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            while not turn.done():
                await asyncio.wait((turn,), timeout=PATIENCE if self._size < self._most else None)
                if not turn.done() and self._size < self._most and self._budget.left:
                    self._size += 1
                    self._hand_out()
        except asyncio.CancelledError:
            if turn.done():
                self._busy -= 1
                self._hand_out()
            else:
                with suppress(ValueError):
                    self._waiting.remove(turn)
            raise

    def _hand_out(self) -> None:
        """Let those who waited longest have a process, as many as may."""
        while self._waiting and self._busy < self._size:
            self._waiting.popleft().set_result(None)
            self._busy += 1

    async def _started(self, ends: int) -> Child:
        if self._ends != ends:
            raise _Ended
        while self._idle:
            child = self._idle.pop()
            if child.dead is None:
                return child
            self._bury(child)
        child = await self._start(self)
        self._alive.add(child)
        if self._ends != ends:
            child.kill("it was stopped while it started")
            self._bury(child)
            raise _Ended
        return child

    def _put_back(self, child: Child) -> None:
        if child.full and child.dead is None:
            child.kill("its memory was full")
        if child.dead is not None:
            self._bury(child)
        else:
            self._idle.append(child)

    def _shrink(self) -> None:
        """End what is idle, but for the process that was used last: others may grow then."""
        self._rest = None
        for child in self._idle[:-1]:
            child.kill("there was too little to be scored")
            self._bury(child)
        del self._idle[:-1]
        self._size = max(1, self._busy)

    def _bury(self, child: Child) -> None:
        if child in self._alive:  # else it was ended with all others
            self._alive.remove(child)
            self._reap(child)

    def died(self, failure: Failure) -> None:
        """See ``child.Owner``: whoever waits for it sees that it is dead, or the next who would take it."""
        self._tell(replace(failure, message=f"its scoring process: {failure.message}"))

    def idled(self) -> None:
        """See ``child.Owner``."""


async def _within(seconds: float, child: Child, ask: Ask[Verdict]) -> Verdict | EpisodeOutcome:
    """Wait for a verdict, but not for ever. The process ends a function whose own time is up; past the wall limit it is
    interrupted from here, then its process killed."""
    verdict = asyncio.ensure_future(ask(child))
    try:
        await asyncio.wait((verdict,), timeout=wall_limit(seconds) + GRACE)
        if not verdict.done():
            child.interrupt()
            await asyncio.wait((verdict,), timeout=GRACE)
        if verdict.done():
            return verdict.result()
        return EpisodeOutcome("timeout", failure=Failure(f"its score took longer than {seconds:g} s and did not stop"))
    finally:
        if not verdict.done():  # late, or nobody waits for it any more
            child.kill("it did not stop scoring")
            verdict.cancel()
            await asyncio.gather(verdict, return_exceptions=True)
