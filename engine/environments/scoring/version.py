"""The scores of one plugin version: each episode that is scored, or group that is compared, has an outcome in time,
whatever the author's function does.

The processes are shared with other versions (``pool``). Where one that others have used dies, cannot load the version
or has no memory left, one of the version's own is tried before that counts: so a version answers for itself. What its
function raises counts at once. A version that cannot be loaded beside others, or that leaves something running behind
its answers, has a pool to itself from then on.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from marlaas.plugins.sandbox_supervisor import wall_limit

from ...trajectories import Failure
from ..process.child import BrokenPlugin
from ..process.launch import Folders
from ..process.scorer import Loadable, ScoringChild
from ..process.wire import Described
from ..protocol import EpisodeOutcome, Ranking, Unscored
from ..recorder import Recorder
from .pool import Ended, ScoringPools, Version, shares

IMPORT_PATIENCE = 30.0
"""Seconds that importing a plugin may take."""
GRACE = 0.5
"""Seconds beyond the wall limit until a function is interrupted, and again until its process is killed."""
TRIES = 2
"""Of a request whose process dies: what it died of need not have been the request."""
LOST = 8
"""Nodes that a request may be lost with beside that, one after the other: there must be an end to it."""

Verdict = TypeVar("Verdict", EpisodeOutcome, Ranking | EpisodeOutcome)
Ask = Callable[[ScoringChild], Awaitable[Verdict]]
_numbers = itertools.count(1)


class VersionScoring:
    """Has the episodes of one version scored."""

    def __init__(self, path: Path, folders: Folders, tell: Callable[[Failure], None], pools: ScoringPools) -> None:
        """``tell`` hears of processes that die with a request of this version."""
        self._tell = tell
        runtime = folders.runtime
        self._loadable = Loadable(next(_numbers), path, folders.scratch, folders.log, folders, shares(runtime))
        bounds = runtime.workers
        self._version = Version(self._loadable, bounds.most if bounds is not None else None, self._died)
        self._used = [pools.of(path, folders)]
        """The pools that it has used; the last is the one that it uses."""
        self._alone = partial(pools.of, path, folders, alone=True)
        self._ended = EpisodeOutcome("error")
        """What becomes of requests that the last end came upon."""

    @property
    def number(self) -> int:
        """By which its workers know it."""
        return self._loadable.number

    @property
    def pids(self) -> list[int]:
        """Ids of the processes on this machine that serve it, or served it last."""
        return [pid for pool in self._used for pid in pool.pids(self._version)]

    @property
    def processes(self) -> int:
        """How many there are on all nodes."""
        return sum(pool.processes(self._version) for pool in self._used)

    async def outcome(self, found: Described, played: EpisodeOutcome | Unscored, recorder: Recorder) -> EpisodeOutcome:
        """How an episode ended: with its score if it wants one, with task and transcript where it may be ranked."""
        outcome = await self._score(found, played, recorder) if isinstance(played, Unscored) else played
        return replace(outcome, task=played.task, transcript=recorder.transcript) if found.ranked else outcome

    async def rank(self, found: Described, members: Sequence[EpisodeOutcome]) -> Ranking | EpisodeOutcome:
        """What the ranking makes of the members, or how it failed."""

        async def ask(child: ScoringChild) -> Ranking | EpisodeOutcome:
            verdict = await child.rank(self._loadable, found.name, members, found.score_timeout)
            if isinstance(verdict, Ranking) and len(verdict.rewards) != len(members):
                return EpisodeOutcome("error", failure=Failure("its process sent rewards for another group"))
            return verdict

        return await self._judge(found.score_timeout, ask)

    def end(self, reason: str, cut: bool = False) -> None:
        """End what is under way (``cut`` as in ``Child.kill``) and what waits; a later request begins anew."""
        self._ended = EpisodeOutcome("cancelled" if cut else "error", failure=Failure(reason))
        for pool in self._used:
            pool.end(self._version, reason, cut)

    async def settle(self) -> None:
        """Wait until the processes that were told to end are gone."""
        for pool in self._used:
            await pool.settle()

    async def _score(self, found: Described, played: Unscored, recorder: Recorder) -> EpisodeOutcome:
        if recorder.too_long:
            return EpisodeOutcome("error", failure=Failure("more was said in the episode than can be scored"))
        transcript, seconds = recorder.transcript, found.score_timeout
        scored = await self._judge(
            seconds, lambda child: child.score(self._loadable, found.name, played, transcript, seconds)
        )
        return replace(scored, metrics=played.metrics, paid=played.paid, seconds=played.seconds + scored.seconds)

    async def _judge(self, seconds: float, ask: Ask[Verdict]) -> Verdict | EpisodeOutcome:
        """Ask a process for its verdict, and ask another one where what failed need not have been the request.

        So it is where the process died, and where it could not load the version or had no memory left though others had
        used it: the other one is then this version's own.
        """
        ends, fresh, tries, lost = self._version.ends, False, 0, 0
        while True:
            tries += 1
            pool, last = self._used[-1], tries >= TRIES
            try:
                async with pool.worker(self._version, fresh) as worker:
                    child = worker.process
                    refused = await pool.load(worker, IMPORT_PATIENCE)
                    if refused is None:
                        verdict = await _within(seconds, child, ask)
                    ended = refused or verdict
                    if child.lost and _error(ended) and lost < LOST and self._version.ends == ends:
                        tries, lost = tries - 1, lost + 1
                        continue
                    clashes = worker.mixed and refused is not None and child.dead is None
                    if pool.shared and (clashes or child.left):
                        self._leave()
                    if last or self._version.ends != ends or not _error(ended):
                        return ended
                    if child.dead is None and not (worker.mixed and (refused is not None or child.full)):
                        return ended
                    fresh = worker.mixed
            except Ended:
                return self._ended
            except BrokenPlugin as error:
                if self._version.ends != ends:
                    return self._ended
                if last or not error.died:
                    return EpisodeOutcome("error", failure=error.failure)
            except ValueError as error:
                return EpisodeOutcome("error", failure=Failure(f"too much was said to be scored: {error}"))

    def _leave(self) -> None:
        """Use no process any more that is others', too."""
        if self._used[-1].shared:
            self._used.append(self._alone())

    def _died(self, failure: Failure) -> None:
        self._tell(replace(failure, message=f"its scoring process: {failure.message}"))


def _error(verdict: Ranking | EpisodeOutcome) -> bool:
    return isinstance(verdict, EpisodeOutcome) and verdict.status == "error"


async def _within(seconds: float, child: ScoringChild, ask: Ask[Verdict]) -> Verdict | EpisodeOutcome:
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
