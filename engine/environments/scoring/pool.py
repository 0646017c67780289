"""The scoring workers of one interpreter, which all its versions share, and how many there are."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from weakref import WeakValueDictionary

from ...fairness import FairClock
from ...trajectories import Failure
from ..budget import PER_CORE, ProcessBudget
from ..nodes.reach import Reach
from ..process.child import BrokenPlugin
from ..process.launch import HERE, Folders, PluginLauncher, Runtime
from ..process.scorer import Loadable, ScoringChild
from ..process.wire import Spent
from ..protocol import EpisodeOutcome

# How many scoring workers the work that waits asks for. Pure.
#
# RollArt (arXiv 2512.22560) gives stateless reward work to workers that come and go with it. A further one costs a
# start here, so it is started if what waits takes the others longer than that.

ENOUGH = 0.5
"""Seconds of requests from which a version's share of a core is known."""
FADING = 0.9
"""What one request before the last counts in that."""


@dataclass(frozen=True)
class Waiting:
    """The requests that wait for a worker."""

    requests: int = 0
    seconds: float = 0.0
    """That they will take one worker, as far as is known: each as long as others of its version, or as it has waited
    where none of its version has ended."""


@dataclass(frozen=True)
class Requests:
    """What the requests of a version took, the newest counting most."""

    number: float = 0.0
    wall: float = 0.0
    computed: float = 0.0
    waited: float = 0.0

    def after(self, wall: float, spent: Spent) -> Requests:
        """With one more: seconds in all, and what its process spent on it."""
        return Requests(
            FADING * self.number + 1,
            FADING * self.wall + wall,
            FADING * self.computed + spent.computed,
            FADING * self.waited + spent.waited,
        )

    @property
    def seconds(self) -> float | None:
        """That one takes; None where none has ended."""
        return self.wall / self.number if self.number else None

    @property
    def weight(self) -> float:
        """How many workers one of it counts as, by the share of a core that it needs: a function that waits for a
        model elsewhere may have more of them than there are cores. Waiting for a core is no waiting, be it the
        function's or the engine's: else the more workers there are, the more there would be."""
        own = self.computed + self.waited
        return max(1 / PER_CORE, self.computed / own) if own >= ENOUGH else 1.0


def wanted(now: int, waiting: Waiting, price: float, spare: int) -> int:
    """How many workers there should be, of which there are ``now`` some, all of them busy.

    ``price``: seconds that starting one takes; ``spare``: how many further ones there may be. The first needs no
    reason, and there are never more than the requests need.
    """
    if not waiting.requests:
        return now
    if not now:
        return 1
    if waiting.seconds <= price * now:
        return now
    return max(now, min(now + min(spare, waiting.requests), math.ceil(waiting.seconds / price)))


# The scoring workers of one interpreter, which all its versions share: none until something is to be scored.
#
# A worker loads a version when it is first given a request of it, keeps a few, and can be given any version's request
# next. Their number follows from the work that waits (``wanted``), within the budget of the machine. Of the versions
# that wait the one goes first that has had the least of the workers' time, so nobody's slow function holds up the
# others for long. A worker has one request at a time, so the one that it dies of is known.

PATIENCE = 0.25
"""Seconds between two looks at what waits, while it waits."""
PRICE = 0.2
"""Least seconds that starting a worker counts as: it also takes a core from those who compute meanwhile."""
REST = 60.0
"""Seconds after which workers beyond the first end, unless they are needed just then."""
KEPT = 8
"""Versions that a worker keeps loaded: those that were used last."""
_MICRO = 1e6


class Ended(Exception):
    """The version was ended before a request of it had a worker."""


class Version:
    """What a pool knows of a version that it scores for."""

    def __init__(self, loadable: Loadable, most: int | None, tell: Callable[[Failure], None]) -> None:
        """``most``: requests under way at the same time, where its author bounds them; ``tell`` hears of workers that
        die with a request of it."""
        self.loadable = loadable
        self.most = most
        self.tell = tell
        self.ends = 0
        """How often it was ended."""
        self.requests = Requests()
        """What those took that have ended."""
        self.loading = 0.0
        """Seconds that loading it took last."""


@dataclass(eq=False)
class Worker:
    """A process, or the place of one that is being started; its child's ``Owner``."""

    pool: ScoringPool
    version: Version
    """Which it serves, or served last."""
    child: ScoringChild | None = None
    kept: list[Version] = field(default_factory=list)
    """Versions that it has loaded, the one used last at the end."""
    seen: set[int] = field(default_factory=set)
    """Numbers of all versions that were ever imported in it."""
    busy: bool = True
    reserved: int = 0
    """Microseconds that its request is expected to take."""
    began: float = 0.0
    """When its request began, with all that it needs loaded; 0 before."""

    @property
    def mixed(self) -> bool:
        """Whether several versions were ever loaded into it."""
        return len(self.seen) > 1

    @property
    def process(self) -> ScoringChild:
        """Its process, which runs."""
        assert self.child is not None, "it was given to a request before it was started"
        return self.child

    def fits(self, version: Version, fresh: bool) -> bool:
        """Whether a request of ``version`` may be given to it; a ``fresh`` one wants no other version's traces."""
        return not fresh or self.seen <= {version.loadable.number}

    def died(self, failure: Failure) -> None:
        """See ``child.Owner``."""
        self.pool.died(self, failure)

    def idled(self) -> None:
        """See ``child.Owner``."""


@dataclass(eq=False)
class _Request:
    version: Version
    fresh: bool
    worker: asyncio.Future[Worker]
    came: float


class ScoringPool:
    """The workers; one that died is replaced when the next request comes."""

    def __init__(
        self,
        start: Callable[[Worker, bool], Awaitable[ScoringChild]],
        shared: bool,
        budget: ProcessBudget,
        room: Callable[[], int | None] = lambda: None,
        reach: Reach | None = None,
    ) -> None:
        """``start`` starts a process for a worker, beside others or not; ``shared``: whether it is several versions';
        ``room``: further workers that the settings allow, None where they leave that to the budget; ``reach``: other
        nodes, if there are any."""
        self._reach = reach or Reach()
        self.shared = shared
        self._start = start
        self._budget = budget
        self._room = room
        self._workers: list[Worker] = []
        """The one that was used last is the last."""
        self._queues: dict[Version, deque[_Request]] = {}
        self._clock: FairClock[Version] = FairClock()
        self._running: Counter[Version] = Counter()
        self._users: set[Version] = set()
        """Versions that have asked for something since they were last ended."""
        self._price = PRICE
        self._look: asyncio.TimerHandle | None = None
        self._rest: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[None]] = set()
        budget.join(self)

    @property
    def size(self) -> int:
        """Workers, with those that are being started."""
        return len(self._workers)

    @property
    def further(self) -> int:
        """See ``budget.Pool``: as many as have work for different versions are due in any case, up to the cores. Those
        whose functions wait more than they compute count as fewer."""
        return max(0, math.ceil(self._weight) - self._due)

    def pids(self, version: Version) -> list[int]:
        """Ids of the processes that serve ``version``, or served it last."""
        return [
            one.child.pid
            for one in self._workers
            if one.child is not None and one.version is version and not one.child.node
        ]

    def processes(self, version: Version) -> int:
        """Processes on all nodes that serve ``version``, or served it last."""
        return sum(one.child is not None and one.version is version for one in self._workers)

    @asynccontextmanager
    async def worker(self, version: Version, fresh: bool) -> AsyncIterator[Worker]:
        """A worker for one request alone; ``fresh``: one in which no other version was ever loaded.

        Raises ``Ended`` where the version is ended meanwhile, and ``BrokenPlugin`` where no process can be started.
        """
        ends = version.ends
        self._users.add(version)
        worker = await self._turn(version, fresh)
        try:
            if worker.child is None:
                await self._begin(worker)
            if version.ends != ends:
                raise Ended
            worker.began = time.monotonic()
            yield worker
        finally:
            self._put_back(worker)

    async def load(self, worker: Worker, patience: float) -> EpisodeOutcome | None:
        """Make sure that a worker has loaded the version that it serves; an outcome says why that failed."""
        version, child = worker.version, worker.process
        if version in worker.kept:
            worker.kept.remove(version)
            worker.kept.append(version)
            return None
        worker.seen.add(version.loadable.number)
        began = time.monotonic()
        loaded = await child.take_in(version.loadable, patience)
        version.loading = time.monotonic() - began
        if isinstance(loaded, EpisodeOutcome):
            return loaded
        worker.kept.append(version)
        worker.began = time.monotonic()
        for old in worker.kept[:-KEPT]:
            child.forget(old.loadable.number)
        del worker.kept[:-KEPT]
        return None

    def end(self, version: Version, reason: str, cut: bool) -> None:
        """End what is under way for a version (``cut`` as in ``Child.kill``) and what waits; workers forget it, and end
        where no other version uses the pool."""
        version.ends += 1
        self._users.discard(version)
        for request in self._queues.pop(version, ()):
            if not request.worker.done():
                request.worker.set_exception(Ended())
        self._clock.leave(version)
        for one in self._workers[:]:
            if one.version is version and one.busy:
                if one.child is not None:
                    one.child.kill(reason, cut)
                self._bury(one)
                continue
            if not one.busy and not self._users:
                self._close(one, reason)
                continue
            if version in one.kept:
                one.kept.remove(version)
                one.process.forget(version.loadable.number)
            if one.version is version:
                one.version = one.kept[-1] if one.kept else next(iter(self._users))
        self._serve()

    async def settle(self) -> None:
        """Wait until the processes that were told to end are gone; they end even if this is cancelled."""
        if self._ending:
            await asyncio.wait(self._ending)

    def died(self, worker: Worker, failure: Failure) -> None:
        """A process died by itself, or had to be killed; whoever has it sees that it is dead."""
        if worker.child is None or not worker.child.lost:
            worker.version.tell(failure)
        if not worker.busy:
            self._bury(worker)

    async def _turn(self, version: Version, fresh: bool) -> Worker:
        """Wait for a worker that has nothing to do, or for the place of a further one."""
        turn: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
        request = _Request(version, fresh, turn, time.monotonic())
        self._queues.setdefault(version, deque()).append(request)
        self._clock.join(version)
        self._serve()
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._put_back(turn.result())
            elif version in self._queues:
                with suppress(ValueError):
                    self._queues[version].remove(request)
                self._settled(version)
            raise

    def _serve(self) -> None:
        """Give workers to those who wait, as many as may have one."""
        passed: set[Version] = set()
        while waiting := [one for one in self._queues if one not in passed and self._may(one)]:
            version = self._clock.behind(waiting)
            request = self._queues[version][0]
            if request.worker.done():  # it has just given up
                self._queues[version].popleft()
                self._settled(version)
                continue
            worker = self._free(request) or self._further(request)
            if worker is None:
                passed.add(version)
                continue
            self._queues[version].popleft()
            self._settled(version)
            self._running[version] += 1
            worker.busy, worker.version = True, version
            seconds = version.requests.seconds
            worker.reserved = round(_MICRO * (PATIENCE if seconds is None else seconds))
            worker.began = 0.0
            self._clock.begin(version, worker.reserved)
            self._workers.remove(worker)
            self._workers.append(worker)
            request.worker.set_result(worker)
        if self._queues and self._look is None:
            self._look = asyncio.get_running_loop().call_later(PATIENCE, self._look_again)

    def _look_again(self) -> None:
        self._look = None
        self._serve()

    def _may(self, version: Version) -> bool:
        return version.most is None or self._running[version] < version.most

    def _free(self, request: _Request) -> Worker | None:
        """An idle worker that fits, above all one that has loaded the version; else the one used longest ago."""
        fitting = [
            one
            for one in self._workers
            if not one.busy
            and one.fits(request.version, request.fresh)
            and self._reach.serves(one.process.node, request.version.loadable.path)
        ]
        loaded = [one for one in fitting if request.version in one.kept]
        return loaded[-1] if loaded else fitting[0] if fitting else None

    def _further(self, request: _Request) -> Worker | None:
        """A further worker, where what waits asks for it, or in the place of an idle one that does not fit."""
        idle = [one for one in self._workers if not one.busy]
        room, weight = self._room(), self._weight
        left: float = self._budget.left_with(self._elsewhere(request.version))
        left += max(0, self._due - math.ceil(weight)) + math.ceil(weight) - weight
        spare = room if room is not None else int(left / request.version.requests.weight)
        price = self._price + request.version.loading
        if not idle and wanted(self.size, self._waiting(), price, spare) <= self.size:
            return None
        if idle and not spare:
            self._close(idle[0], "another version needs its place")
        worker = Worker(self, request.version)
        self._workers.append(worker)
        return worker

    def _elsewhere(self, version: Version) -> int:
        """Cores of other nodes that the version may use by now."""
        return self._reach.elsewhere(version.loadable.path, version.loadable.folders)

    def _waiting(self) -> Waiting:
        now, requests, seconds = time.monotonic(), 0, 0.0
        for version, queue in self._queues.items():
            allowed = len(queue) if version.most is None else version.most - self._running[version]
            for request in list(queue)[: max(0, allowed)]:
                requests += 1
                known = version.requests.seconds
                seconds += now - request.came if known is None else known
        return Waiting(requests, seconds)

    @property
    def _due(self) -> int:
        """Workers that it may have in any case."""
        versions = len({*self._queues, *(version for version, running in self._running.items() if running)})
        return max(1, min(self._budget.cores, versions))

    async def _begin(self, worker: Worker) -> None:
        began = time.monotonic()
        child = await self._start(worker, any(other is not worker for other in self._workers))
        self._price = max(PRICE, time.monotonic() - began)
        worker.child = child
        if worker not in self._workers:  # its version was ended meanwhile
            child.kill("it was stopped while it started")
            self._reap(child)
            raise Ended

    @property
    def _weight(self) -> float:
        """How many workers all count as."""
        return math.fsum(one.version.requests.weight for one in self._workers)

    def _put_back(self, worker: Worker) -> None:
        version, child = worker.version, worker.child
        wall = time.monotonic() - worker.began if worker.began else 0.0
        self._running[version] -= 1
        if not self._running[version]:
            del self._running[version]
        self._clock.give_back(version, worker.reserved)
        self._clock.charge(version, round(wall * _MICRO))
        if worker in self._workers:
            worker.busy = False
            if child is None or child.dead is not None:
                self._bury(worker)
            elif child.full:
                self._close(worker, "its memory was full")
            elif child.left and self.shared:
                self._close(worker, "something was left behind in it that could disturb others")
            else:
                version.requests = version.requests.after(wall, child.spent or Spent(wall, 0.0))
        self._serve()
        if self.size > 1 and self._rest is None:
            self._rest = asyncio.get_running_loop().call_later(REST, self._shrink)

    def _shrink(self) -> None:
        """End what is idle, but for the worker that was used last: others may grow then."""
        self._rest = None
        idle = [one for one in self._workers if not one.busy]
        for one in idle[:-1] if len(idle) == self.size else idle:
            self._close(one, "there was too little to be scored")
        if self.size > 1:
            self._rest = asyncio.get_running_loop().call_later(REST, self._shrink)

    def _settled(self, version: Version) -> None:
        """A version has one request less that waits."""
        if not self._queues[version]:
            del self._queues[version]
            self._clock.leave(version)

    def _close(self, worker: Worker, reason: str) -> None:
        if worker.child is not None:
            worker.child.kill(reason)
        self._bury(worker)

    def _bury(self, worker: Worker) -> None:
        if worker in self._workers:
            self._workers.remove(worker)
            if worker.child is not None:
                self._reap(worker.child)

    def _reap(self, child: ScoringChild) -> None:
        task = asyncio.get_running_loop().create_task(child.wait())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


# Every scoring worker of a home, in pools: versions share one where they run on the same Python with the same limits.
#
# A version has a pool to itself where it is confined, for its processes see no files but its own; where its author
# says that it changes what all of Python sees; and where that is found out (``VersionScoring``). All others have the
# rights of the account that runs the engine, and could harm each other anyway. Limits on memory, and the priority,
# are alike in a pool.

START_PATIENCE = 30.0
"""Seconds of its own that a process may take to begin."""
_SHARED = "_scoring"
"""The name of the folder and the log of shared processes; no plugin has one that begins so."""


class ScoringPools:
    """The pools by what their processes run on; each is there as long as a version uses it."""

    def __init__(self, budget: ProcessBudget, most: int = 0, reach: Reach | None = None) -> None:
        """``most``: scoring workers at the same time, of all pools; 0: as many as the ``budget`` has room for.
        ``reach``: other nodes, if there are any."""
        self.budget = budget
        self.reach = reach or Reach(budget.cores)
        self._most = most
        self._pools: WeakValueDictionary[tuple[Runtime, Path | None], ScoringPool] = WeakValueDictionary()

    def of(self, path: Path, folders: Folders, alone: bool = False) -> ScoringPool:
        """The pool for the version that is imported from ``path``; one of its own if it has to be ``alone``."""
        own = None if shares(folders.runtime) and not alone else path
        runtime = replace(folders.runtime, workers=None, episodes=0)
        if own is None:
            folders = Folders(folders.scratch.with_name(_SHARED), folders.log.with_name(f"{_SHARED}.log"), runtime)
        pool = self._pools.get((runtime, own))
        if pool is None:
            pool = ScoringPool(_Starting(self.reach, path, folders), own is None, self.budget, self._room, self.reach)
            self._pools[runtime, own] = pool
        return pool

    def _room(self) -> int | None:
        """Further workers that the home's settings allow; None where they leave that to the budget."""
        return max(0, self._most - sum(pool.size for pool in self._pools.values())) if self._most else None


def shares(runtime: Runtime) -> bool:
    """Whether other versions may be loaded into processes that run on this."""
    return runtime.confinement is None and runtime.shared_scoring


@dataclass(frozen=True)
class _Starting:
    """Starts a pool's processes: the first on the engine's machine, further ones where there is the most room."""

    reach: Reach
    path: Path
    folders: Folders

    async def __call__(self, owner: Worker, further: bool) -> ScoringChild:
        path = owner.version.loadable.path
        if further:
            with self.reach.place(path) as launcher, suppress(BrokenPlugin):  # the node may just have been lost
                if launcher.node:
                    return await self._started(path, owner, launcher)
        return await self._started(self.path, owner, HERE)

    async def _started(self, path: Path, owner: Worker, launcher: PluginLauncher) -> ScoringChild:
        child = await ScoringChild.start(path, self.folders, owner, START_PATIENCE, launcher)
        self.reach.count(child)
        return child
