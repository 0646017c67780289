"""One version of one plugin, kept served for as long as somebody needs it.

When its process dies it is started again, later each time; what keeps dying or failing rests (``health``). A version
that was replaced ends with its last lease, or after a grace.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from marlaas.plugins.messages import Answer

from ..devices import available_memory
from ..errors import WorkerDied
from ..trajectories import Failure
from .budget import ProcessBudget
from .grace import EpisodeTimes
from .health import Health
from .playing import Cut, Elsewhere, PlayingPool, Worker
from .probe import probe
from .process.child import BrokenPlugin, Child, Owner
from .process.launch import Folders, lend, stamped
from .process.pulse import resident_bytes
from .process.wire import Described
from .protocol import Answering, Crew, DataFacts, EpisodeOutcome, EpisodeSpec, EventKind, Ranking, Unscored
from .recorder import Recorder
from .scoring.pool import ScoringPools
from .scoring.version import IMPORT_PATIENCE, VersionScoring
from .sizing import Workers

_SMALLEST = 64 << 20
"""Bytes that a process counts for at least, before it has played much."""
REPLACED = "a newer version took its place"

Told = Callable[[EventKind, str, Failure | None], None]


class ServedVersion:
    """A version: its processes, its leases, and its health."""

    def __init__(
        self, version: str, path: Path, folders: Folders, tell: Told, scoring: ScoringPools, code: str = ""
    ) -> None:
        """``scoring``: where its episodes are scored, with the budget of all processes; ``code``: the key of what
        decides how it plays (``Source.code``)."""
        self.version = version
        self.code = code
        self.environments: dict[str, Described] = {}
        self.refused: dict[str, Failure] = {}
        """By name, why some environments of a ``.toml`` file are not served beside the others."""
        self._unproven: dict[str, Failure] = {}
        """Those of them that did not get to their first ask."""
        self.health = Health()
        self.leases = 0
        self.retired = False
        """Whether no new groups begin: the processes then end with the last lease and episode."""
        self.cut = False
        """Whether its grace is over: further episodes are cancelled."""
        self.cuts = 0
        """How often its grace has ended."""
        self._by_version = 0
        self._path = path
        self._folders = folders
        self._tell = tell
        self._kept_here: set[str] = set()
        """Rows that tasks name and that cannot be had on other nodes."""
        self._proven: set[str] = set()
        """Other nodes on which it has got to its first asks."""
        self._shaken = False
        """Whether the only process died and no other runs yet."""
        self._times = EpisodeTimes()
        self._begun = 0
        """Number of the last episode that was begun for a task."""
        self._undecided: dict[int, tuple[str, EpisodeSpec]] = {}
        """Environments and episodes that are being played for tasks, by number: in the order in which they began."""
        self.grace = 0.0
        """Seconds that its episodes were given to end when it was replaced."""
        self._grace: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[None]] = set()
        runtime, self._reach = folders.runtime, scoring.reach
        self._playing = PlayingPool(
            self._launched,
            self,
            runtime.workers_within(scoring.budget.cores),
            runtime.episodes,
            scoring.budget,
            Elsewhere(self._launched_further, self._cores_elsewhere, self._reach.stays),
            runtime.workers is None,
            self._fitting,
        )
        self._scoring = VersionScoring(path, folders, lambda failure: tell("died", version, failure), scoring)

    async def prove(self) -> None:
        """Start a process and play up to the first ask of every environment; ``BrokenPlugin`` if anything fails."""
        try:
            while True:
                child = await self._playing.alive()
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
        """Start a process where there is none; ``BrokenPlugin`` if that fails."""
        await self._playing.alive()

    async def watch(self) -> Child:
        """A process that plays, told to look at what keeps its event loop busy until it is asked for that."""
        child = await self._playing.alive()
        child.watch()
        return child

    def apart(self) -> ServedVersion:
        """This version in one separate process: what happens there does not affect groups, and is not reported."""
        runtime = replace(self._folders.runtime, workers=Workers(1, 1))
        folders, scoring = replace(self._folders, runtime=runtime), ScoringPools(ProcessBudget())
        return ServedVersion(self.version, self._path, folders, lambda kind, version, failure: None, scoring, self.code)

    @property
    def children(self) -> list[Child]:
        """The processes that play, the oldest first."""
        return self._playing.children

    @property
    def pid(self) -> int | None:
        """The first of the processes that play here, while there is one."""
        return next(iter(self._playing.pids), None)

    @property
    def pids(self) -> list[int]:
        """All processes on this machine: those that play, then those that score it or scored it last."""
        return [*self._playing.pids, *self._scoring.pids]

    @property
    def crew(self) -> Crew:
        """Its processes and their episodes at this moment."""
        playing = self._playing
        return Crew(len(playing.children), self._scoring.processes, playing.live, playing.waiting)

    @property
    def over(self) -> bool:
        """Whether it has no lease and no process, not even one that is about to end."""
        return not self.leases and not self._scoring.processes and self._playing.over and not self._ending

    async def play(self, environment: str, spec: EpisodeSpec, answer: Answer, counts: bool = False) -> EpisodeOutcome:
        """Play one episode in a process of this version, where it finds a place; see ``EnvironmentService``.

        Its place is free, and who answers hears that it is over, before it is scored.
        """
        if self.cut:
            return EpisodeOutcome("cancelled", failure=Failure(REPLACED))
        playing = self._playing
        try:
            worker, placed = await self._placed(spec)
        except BrokenPlugin as error:
            return EpisodeOutcome("error", failure=error.failure)
        except Cut:
            return EpisodeOutcome("cancelled", failure=Failure(REPLACED))
        found = self.environments[environment]
        recorder = Recorder(answer) if found.recorded else None
        if counts:
            number = self._begun = self._begun + 1
            self._undecided[number] = environment, spec
        try:
            try:
                played = await worker.child.play(environment, placed, recorder or answer)
            finally:
                playing.leave(worker)
                if self.retired:
                    self.stop_if_done()
            if isinstance(answer, Answering):
                answer.over()
            if recorder is None and isinstance(played, EpisodeOutcome):
                outcome = played
            else:
                outcome = await self._scored(found, played, recorder or Recorder(answer))
        finally:
            if counts:
                del self._undecided[number]
        self._times.add(outcome.seconds)
        if counts and (outcome.status != "ok" or self.health.troubled):
            self._judge(environment, spec, outcome, worker.child, number)
        return outcome

    async def _placed(self, spec: EpisodeSpec) -> tuple[Worker, EpisodeSpec]:
        """A place for an episode, and the episode with the rows that its task names where it is then played.

        Raises as ``PlayingPool.wait`` does.
        """
        playing, rows = self._playing, spec.data
        here = rows is not None and str(rows) in self._kept_here
        worker = playing.take(here) or await playing.wait(here)
        if rows is None or not worker.child.node:
            return worker, spec
        try:
            return worker, replace(spec, data=await worker.child.rows(rows))
        except OSError as error:
            playing.leave(worker)
            if str(rows) not in self._kept_here:
                self._kept_here.add(str(rows))
                said = f"its rows stay on this machine: {error.strerror or error}"
                self._tell("elsewhere", self.version, Failure(said, file=str(rows["path"])))
        except WorkerDied:
            playing.leave(worker)
        except BaseException:
            playing.leave(worker)
            raise
        return playing.take(here=True) or await playing.wait(here=True), spec

    async def room(self) -> None:
        """Wait until no episode waits for a place in a process, or those that waited were refused."""
        await self._playing.room()

    async def rank(self, environment: str, members: Sequence[EpisodeOutcome]) -> Ranking | EpisodeOutcome:
        """Have the members of a group compared; an outcome says why that failed."""
        if self.cut:
            return EpisodeOutcome("cancelled", failure=Failure(REPLACED))
        return await self._scoring.rank(self.environments[environment], members)

    async def facts(self, environment: str, data: Mapping[str, Any] | None, survey: bool = False) -> DataFacts:
        """What there is to know of the rows of an environment, or of ``data`` in their place.

        Raises ``BrokenPlugin`` with the reason why they cannot be had.
        """
        child = await self._playing.alive()
        try:
            found = await child.facts(environment, data, survey)
        finally:
            if self.retired:
                self.stop_if_done()
        if isinstance(found, DataFacts):
            return found
        raise BrokenPlugin(found.failure or Failure(f"{environment} ended as {found.status}"), child.dead is not None)

    async def lent(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """The rows that a task names, as they are now and where a confined process can read them.

        Raises ``OSError``.
        """
        data = await asyncio.to_thread(stamped, data)
        if self._folders.runtime.confinement is None:
            return data
        return await asyncio.to_thread(lend, data, self._folders.lent)

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
        """Begin no new groups: the processes end when those under way are over, or when their grace is."""
        self.retired = True
        self.stop_if_done()
        if self._grace is None and (self.leases or not self._playing.over):
            self.grace = self._times.grace
            self._grace = asyncio.get_running_loop().call_later(self.grace, self.expire)

    def promote(self) -> None:
        """New groups get this version, perhaps once more."""
        self.retired = self.cut = False
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None
        self._playing.fill()

    def idled(self) -> None:
        """See ``playing.Version``."""
        self.stop_if_done()

    def stop_if_done(self) -> None:
        """End the processes of a retired version once nobody plays on them."""
        if self.retired and not self.leases:
            self._scoring.end(REPLACED)
            self._playing.end_idle(REPLACED)

    async def settle(self) -> None:
        """Wait until the processes that were told to end are gone; they end even if this is cancelled."""
        if self._ending:
            await asyncio.wait(self._ending)
        await self._scoring.settle()

    async def stop(self, reason: str) -> None:
        """End the processes and wait until they are gone."""
        if self._grace is not None:
            self._grace.cancel()
        self._scoring.end(reason)
        await self._playing.stop(reason)
        await self.settle()

    @property
    def needed(self) -> bool:
        """See ``playing.Version``."""
        return self.leases > 0 or not self.retired

    def started(self, child: Child) -> None:
        """See ``playing.Version``."""
        if self._shaken:
            self._shaken = False
            self._tell("restarted", self.version, None)
        self.stop_if_done()  # it may not be needed any more

    def bury(self, failure: Failure, others: int) -> None:
        """See ``playing.Version``."""
        self._shaken = self._shaken or not others
        rest = self.health.died(failure, others + 1)
        self._tell("quarantined" if rest else "died", self.version, rest or failure)

    def reap(self, child: Child) -> None:
        """See ``playing.Version``."""
        task = asyncio.get_running_loop().create_task(child.wait())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _launched(self, owner: Owner) -> Child:
        child = await Child.start(self._path, self._folders, owner, IMPORT_PATIENCE)
        self._reach.count(child)
        self._take(child)
        return child

    async def _launched_further(self, owner: Owner) -> Child:
        """A process beside others, on the node with the most room; here, where it does not work there."""
        with self._reach.place(self._path) as launcher:
            if not launcher.node:
                return await self._launched(owner)
            try:
                child = await Child.start(self._path, self._folders, owner, IMPORT_PATIENCE, launcher)
                self._reach.count(child)
                if launcher.node not in self._proven:
                    await probe(child, each=self._path.suffix == ".toml")
                    self._proven.add(launcher.node)
                return child
            except BrokenPlugin as error:
                self._reach.refuse(launcher.node, self._path, self._folders.scratch.name, error.failure.message)
        return await self._launched(owner)

    def _fitting(self) -> int:
        """Further processes for which half of the machine's free memory is enough."""
        largest = max(map(resident_bytes, self._playing.pids), default=0)
        return available_memory() // (2 * max(largest, _SMALLEST))

    def _cores_elsewhere(self) -> int:
        return self._reach.elsewhere(self._path, self._folders)

    async def _scored(self, found: Described, played: EpisodeOutcome | Unscored, recorder: Recorder) -> EpisodeOutcome:
        """The outcome of an episode that has a score function or may be ranked; it is scored in another process."""
        if isinstance(played, EpisodeOutcome) and not found.ranked:
            return played
        return await self._scoring.outcome(found, played, recorder)

    def _take(self, child: Child) -> None:
        """Note what a process serves."""
        self.environments = {name: one for name, one in child.environments.items() if name not in self._unproven}
        self.refused = child.refused | self._unproven

    def _judge(self, environment: str, spec: EpisodeSpec, outcome: EpisodeOutcome, child: Child, number: int) -> None:
        """Record in ``health`` how an episode ended; a death of the process is recorded once, in ``bury``.

        What fails in a process whose memory is full fails together, on all instances, and would have worked in another.
        """
        settings = settings_of(environment, spec.config, spec.data)
        if outcome.status == "ok":
            if self.health.did_well(settings):
                self._tell("recovered", self.version, None)
        elif outcome.status in ("error", "timeout") and not (child.dead or child.full or outcome.overloaded):
            failure = outcome.failure or Failure(f"{environment} ended as {outcome.status}")
            instance = spec.split, spec.seed, spec.index
            first = partial(self._first_undecided, settings)
            if rest := self.health.failed(settings, instance, failure, number, first):
                self._tell("quarantined", self.version, rest)

    def _first_undecided(self, settings: tuple[str, str]) -> int | None:
        """Number of the first episode that is being played with these settings; None where there is none."""
        undecided = self._undecided.items()
        return next((n for n, (name, spec) in undecided if settings_of(name, spec.config, spec.data) == settings), None)

    def expire(self) -> None:
        """The grace of a replaced version is over."""
        self._grace = None
        if self.retired and not self._by_version:
            self.cut = True
            self.cuts += 1
            self._scoring.end(REPLACED, cut=True)
            self._playing.end(REPLACED, cut=True)


def settings_of(environment: str, config: Mapping[str, Any], data: Mapping[str, Any] | None = None) -> tuple[str, str]:
    """The key under which failures are counted: an environment, and as text its parameters and the rows that are named.

    Rows that are mended have another stamp, and so another key.
    """
    named = "" if data is None else f" {data['path']} {data['stamp']}"
    return environment, json.dumps(config, sort_keys=True, default=repr) + named
