"""One version of one plugin, kept served for as long as somebody needs it.

When the process dies it is started again, later each time; what keeps dying or failing rests (``health``). A version
that was replaced ends with its last lease, or after a grace.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from marlaas.plugins.messages import Answer

from ..trajectories import Failure
from .health import Health
from .probe import probe
from .process.child import BrokenPlugin, Child
from .process.launch import Folders
from .process.wire import Described
from .protocol import EpisodeOutcome, EpisodeSpec, EventKind, Ranking
from .recorder import Recorder
from .scoring import ScoringPool

IMPORT_PATIENCE = 30.0
"""Seconds that importing a plugin may take."""
REPLACED = "a newer version took its place"
_FIRST_PAUSE = 0.05

Told = Callable[[EventKind, str, Failure | None], None]


class Serving:
    """A version: its process if one is alive, its leases, and its health."""

    def __init__(self, version: str, path: Path, folders: Folders, tell: Told) -> None:
        self.version = version
        self.environments: dict[str, Described] = {}
        self.refused: dict[str, Failure] = {}
        """By name, why some environments of a ``.toml`` file are not served beside the others."""
        self._unproven: dict[str, Failure] = {}
        """Those of them that did not get to their first ask."""
        self.health = Health()
        self.leases = 0
        self.retired = False
        """Whether no new groups begin: the process then ends with its last lease and episode."""
        self.cut = False
        """Whether its grace is over: further episodes are cancelled."""
        self.cuts = 0
        """How often its grace has ended."""
        self._by_version = 0
        self._path = path
        self._folders = folders
        self._tell = tell
        self._child: Child | None = None
        self._shaken = False
        """Whether the process died and no other runs yet."""
        self._times = EpisodeTimes()
        self.grace = 0.0
        """Seconds that its episodes were given to end when it was replaced."""
        self._grace: asyncio.TimerHandle | None = None
        self._starting: asyncio.Task[Child] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._scoring = ScoringPool(
            start=lambda owner: Child.start(path, folders, owner, IMPORT_PATIENCE),
            reap=self._reap,
            tell=lambda failure: tell("died", version, failure),
        )

    async def prove(self) -> None:
        """Start a process and play up to the first ask of every environment; ``BrokenPlugin`` if anything fails."""
        try:
            while True:
                child = await self._child_alive()
                try:
                    self._unproven = await probe(child, each=self._path.suffix == ".toml")
                    return self._take(child)
                except BrokenPlugin:
                    if child.dead is None:
                        raise  # else it is tried again, until it rests
        except BaseException:
            await self.stop("it was found broken")
            raise

    async def warm(self) -> None:
        """Start the process if it is down; ``BrokenPlugin`` if that fails."""
        await self._child_alive()

    async def watch(self) -> Child:
        """A process that plays, told to look at what keeps its event loop busy until it is asked for that."""
        child = await self._child_alive()
        child.watch()
        return child

    def apart(self) -> Serving:
        """This version in separate processes: what happens there does not affect groups, and is not reported."""
        return Serving(self.version, self._path, self._folders, lambda kind, version, failure: None)

    @property
    def pid(self) -> int | None:
        """The process that plays, while one is alive."""
        return self._child.pid if self._child is not None else None

    @property
    def pids(self) -> list[int]:
        """All processes: the one that plays, and those that score."""
        return [*([self._child.pid] if self._child is not None else []), *self._scoring.pids]

    @property
    def over(self) -> bool:
        """Whether it has no lease and no process, not even one that is about to end."""
        return not self.leases and not self.pids and not self._ending

    async def play(self, environment: str, spec: EpisodeSpec, answer: Answer, counts: bool = False) -> EpisodeOutcome:
        """Play one episode on the process of this version, starting it where it is down; see ``EnvironmentService``."""
        if self.cut:
            return EpisodeOutcome("cancelled", failure=Failure(REPLACED))
        child = self._child
        if child is None:
            try:
                child = await self._child_alive()
            except BrokenPlugin as error:
                return EpisodeOutcome("error", failure=error.failure)
        try:
            outcome = await self._played(child, environment, spec, answer)
        finally:
            if self.retired:
                self.stop_if_done()
        self._times.add(outcome.seconds)
        if counts and (outcome.status != "ok" or self.health.troubled):
            self._judge(environment, spec, outcome, child)
        return outcome

    async def rank(self, environment: str, members: Sequence[EpisodeOutcome]) -> Ranking | EpisodeOutcome:
        """Have the members of a group compared; an outcome says why that failed."""
        if self.cut:
            return EpisodeOutcome("cancelled", failure=Failure(REPLACED))
        return await self._scoring.rank(self.environments[environment], members)

    def hold(self, by_version: bool) -> None:
        """A lease begins."""
        self.leases += 1
        if by_version:
            self._by_version += 1
            self.cut = False  # a lease by version is not sent to a newer one

    def release(self, by_version: bool) -> None:
        """A lease ends."""
        self.leases -= 1
        self._by_version -= by_version
        self.stop_if_done()

    def retire(self) -> None:
        """Begin no new groups: the process ends when those under way are over, or when their grace is."""
        self.retired = True
        self.stop_if_done()
        if self._grace is None and (self.leases or self._child is not None):
            self.grace = self._times.grace
            self._grace = asyncio.get_running_loop().call_later(self.grace, self.expire)

    def promote(self) -> None:
        """New groups get this version, perhaps once more."""
        self.retired = self.cut = False
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None

    def idled(self) -> None:
        """See ``child.Owner``."""
        self.stop_if_done()

    def stop_if_done(self) -> None:
        """End the process of a retired version once nobody plays on it."""
        if self.retired and not self.leases:
            self._scoring.end(REPLACED)
            if self._child is not None and self._child.idle:
                self._end(self._child, REPLACED)

    async def settle(self) -> None:
        """Wait until the processes that were told to end are gone; they end even if this is cancelled."""
        if self._ending:
            await asyncio.wait(self._ending)

    async def stop(self, reason: str) -> None:
        """End the process and wait until it is gone."""
        if self._grace is not None:
            self._grace.cancel()
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        self._scoring.end(reason)
        if self._child is not None:
            self._end(self._child, reason)
        await self.settle()

    def died(self, failure: Failure) -> None:
        """See ``child.Owner``."""
        dead, self._child = self._child, None
        if dead is not None:
            self._reap(dead)
        self._bury(failure)
        if self.health.resting is None and (self.leases or not self.retired):
            self._starting = asyncio.get_running_loop().create_task(self._start())
            self._starting.add_done_callback(_retrieve)

    async def _played(self, child: Child, environment: str, spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
        """Play an episode on one process and, where it has a score function, score it on another."""
        found, recorder = self.environments[environment], Recorder(answer)
        played = await child.play(environment, spec, recorder if found.recorded else answer)
        if isinstance(played, EpisodeOutcome) and not found.ranked:
            return played
        return await self._scoring.outcome(found, played, recorder)

    async def _child_alive(self) -> Child:
        if self._child is not None:
            return self._child
        if self._starting is None or self._starting.done():
            self._starting = asyncio.get_running_loop().create_task(self._start())
            self._starting.add_done_callback(_retrieve)
        return await asyncio.shield(self._starting)

    async def _start(self) -> Child:
        while True:
            if rest := self.health.resting:
                raise BrokenPlugin(rest)
            if deaths := self.health.deaths:
                await asyncio.sleep(_FIRST_PAUSE * 4 ** (deaths - 1))
            try:
                child = await Child.start(self._path, self._folders, self, IMPORT_PATIENCE)
            except BrokenPlugin as error:
                if not error.died:
                    raise
                self._bury(error.failure)
                continue
            self._take(child)
            self._child = child
            if self._shaken:
                self._shaken = False
                self._tell("restarted", self.version, None)
            self.stop_if_done()  # it may not be needed any more
            return child

    def _take(self, child: Child) -> None:
        """Note what a process serves."""
        self.environments = {name: one for name, one in child.environments.items() if name not in self._unproven}
        self.refused = child.refused | self._unproven

    def _judge(self, environment: str, spec: EpisodeSpec, outcome: EpisodeOutcome, child: Child) -> None:
        """Record in ``health`` how an episode ended; a death of the process is recorded once, in ``died``."""
        settings = settings_of(environment, spec.config)
        if outcome.status == "ok":
            if self.health.did_well(settings):
                self._tell("recovered", self.version, None)
        elif outcome.status in ("error", "timeout") and child.dead is None:
            failure = outcome.failure or Failure(f"{environment} ended as {outcome.status}")
            if rest := self.health.failed(settings, (spec.split, spec.seed, spec.index), failure):
                self._tell("quarantined", self.version, rest)

    def _bury(self, failure: Failure) -> None:
        self._shaken = True
        rest = self.health.died(failure)
        self._tell("quarantined" if rest else "died", self.version, rest or failure)

    def expire(self) -> None:
        """The grace of a replaced version is over."""
        self._grace = None
        if self.retired and not self._by_version:
            self.cut = True
            self.cuts += 1
            self._scoring.end(REPLACED, cut=True)
            if self._child is not None:
                self._end(self._child, REPLACED, cut=True)

    def _end(self, child: Child, reason: str, cut: bool = False) -> None:
        self._child = None
        child.kill(reason, cut)
        self._reap(child)

    def _reap(self, child: Child) -> None:
        task = asyncio.get_running_loop().create_task(child.wait())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


def settings_of(environment: str, config: Mapping[str, Any]) -> tuple[str, str]:
    """The key under which failures are counted: an environment, and its parameters as text."""
    return environment, json.dumps(config, sort_keys=True, default=repr)


def _retrieve(task: asyncio.Task[Child]) -> None:
    """Retrieve the error of a start that nobody waits for; the next start raises it anew."""
    if not task.cancelled():
        task.exception()


SHORTEST = 30.0
LONGEST = 3600.0
"""Least and most seconds of a grace, however long episodes take."""
FACTOR = 3.0
REMEMBERED = 256
"""Number of episodes whose times are kept."""


class EpisodeTimes:
    """The seconds that the last episodes of a version took, the model's included."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=REMEMBERED)
        self.add = self._seconds.append
        """Adds an episode's seconds; bound directly, for it is called for every episode."""

    @property
    def grace(self) -> float:
        """Seconds that episodes under way get to end: three times what 95 % of them take."""
        return min(LONGEST, max(SHORTEST, FACTOR * percentile(self._seconds, 0.95)))


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that ``share`` of all do not exceed; 0 where there is none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
