"""One policy's versions: served, held by groups, kept on the disk."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence, Set
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

from ..adapters.statefile import keep, strip_moments
from ..clock import monotonic
from ..errors import AdapterError, DatabaseLocked, WorkerDied
from ..faults import Point, reach
from ..machine.routing.assignment import Share
from ..rollout.slots import SamplerEndpoint
from ..store.store import Store
from ..store.versions import Version, best

# A version's *replicas* are its living endpoints. It is retired after the last running group; nobody waits.


class PublishedVersions:
    """One policy's live versions."""

    def __init__(self, endpoints: Mapping[str, SamplerEndpoint]) -> None:
        self._endpoints = endpoints
        self._holders: Counter[str] = Counter()
        self._routes: dict[str, tuple[SamplerEndpoint, ...]] = {}
        """By version: its replicas, including dead ones."""
        self._loaded: defaultdict[str, set[SamplerEndpoint]] = defaultdict(set)
        """The endpoints that have loaded a version, by its name."""
        self._retiring: set[asyncio.Task[None]] = set()
        self.current: Version | None = None

    async def publish(self, version: Version, shares: Sequence[Share]) -> None:
        """Serve a committed version on the endpoints of ``shares``.

        Raises ``AdapterError`` if an endpoint received other bytes than were committed.
        """
        with self.hold(version):  # loaded but not current: it must not be swept
            reach(Point.PUBLISH_READY)
            await self._serve(version, shares)
            self.current = version
            reach(Point.PUBLISH_DONE)

    async def spread(self, version: Version, shares: Sequence[Share]) -> list[SamplerEndpoint]:
        """Load a version on the endpoints of ``shares``, as for the canary. Raises as ``publish`` does."""
        endpoints = [self._endpoints[share.sampler] for share in shares]
        with self.hold(version):
            await self._load(version, endpoints)
        return endpoints

    @asynccontextmanager
    async def lent(self, version: Version, shares: Sequence[Share] = ()) -> AsyncIterator[None]:
        """Serve a further version during the block.

        Without ``shares``, on the current version's main endpoint. Raises as ``publish`` does.
        """
        shares = shares or (Share(self.replicas(self.now())[0].name, 1.0),)
        with self.hold(version):
            await self._serve(version, shares)
            yield

    def now(self) -> Version:
        """Raises ``WorkerDied`` if no worker serves this policy."""
        if self.current is None:
            raise WorkerDied("No version of this policy is being served.")
        return self.current

    def serves(self, version: Version) -> bool:
        return any(not endpoint.lost for endpoint in self._routes.get(version.name, ()))

    def replicas(self, version: Version) -> list[SamplerEndpoint]:
        """Largest share first. Raises ``WorkerDied`` if none is left."""
        living = [endpoint for endpoint in self._routes.get(version.name, ()) if not endpoint.lost]
        if not living:
            raise WorkerDied(f"No sampler serves {version.name}.")
        return living

    @contextmanager
    def hold(self, version: Version) -> Iterator[None]:
        self._holders[version.name] += 1
        try:
            yield
        finally:
            self._holders[version.name] -= 1
            self._sweep()

    def holds(self, version: Version) -> bool:
        return self._holders[version.name] > 0

    async def clear(self) -> None:
        self.current = None
        self._holders.clear()
        self._sweep()
        await asyncio.gather(*self._retiring)

    async def _serve(self, version: Version, shares: Sequence[Share]) -> None:
        endpoints = await self.spread(version, shares)
        if not self.serves(version):
            self._routes[version.name] = tuple(endpoints)

    async def _load(self, version: Version, endpoints: Sequence[SamplerEndpoint]) -> None:
        missing = sorted(set(endpoints) - self._loaded[version.name], key=lambda endpoint: endpoint.name)
        loads = [asyncio.ensure_future(self._load_at(endpoint, version)) for endpoint in missing]
        loading = asyncio.gather(*loads, return_exceptions=True)
        try:
            failures = await asyncio.shield(loading)
        except asyncio.CancelledError:
            await asyncio.gather(*loads, return_exceptions=True)
            raise
        for failure in failures:
            if failure is not None:
                raise failure

    async def _load_at(self, endpoint: SamplerEndpoint, version: Version) -> None:
        checksum = await endpoint.sampler.load(version.name, version.path)
        self._loaded[version.name].add(endpoint)
        if checksum != version.checksum:
            raise AdapterError(f"The sampler loaded {checksum} as {version.name}; {version.checksum} was committed.")

    def _sweep(self) -> None:
        current = self.current.name if self.current else None
        for name in [name for name in self._loaded if name != current and not self._holders[name]]:
            self._routes.pop(name, None)
            for endpoint in self._loaded.pop(name):
                retiring = asyncio.ensure_future(self._retire(name, endpoint))
                self._retiring.add(retiring)
                retiring.add_done_callback(self._retiring.discard)

    async def _retire(self, name: str, endpoint: SamplerEndpoint) -> None:
        with contextlib.suppress(WorkerDied):
            await endpoint.sampler.retire(name)


INTERVAL = 1.0
"""Seconds between ``tidy``'s calls of ``retain``."""


class Retention:
    """Names one policy's versions, and keeps their files, moments and tokens."""

    def __init__(
        self,
        store: Store,
        task: int,
        policy: int,
        every: int = 0,
        token_steps: int = 0,
        played: Callable[[Sequence[int]], Set[int]] = lambda numbers: frozenset(),
        given: bool = False,
        suite: str = "",
        held: Callable[[Version], bool] = lambda version: False,
    ) -> None:
        """Every ``every``-th version stays; tokens of the last ``token_steps`` steps, 0: all.

        ``played`` filters versions in opponent pools. ``given``: version 0 holds weights trained elsewhere. ``suite``:
        its score decides the best version; empty: the task's prompts. ``held``: True for a version served or being
        loaded.
        """
        self.given = given
        self._played = played
        self._held = held
        self._store = store
        self._evaluations = store.evaluations.of(suite)
        self._task = task
        self._told: set[str] = set()
        self._policy = policy
        self._every = every
        self._token_steps = token_steps
        self._due = 0.0
        self._tidying = asyncio.Lock()

    def label(self) -> None:
        """Last, and best trained one of the newest series with a file."""
        numbers = [version.number for version in self._store.versions.candidates(self._policy)]
        scores = self._evaluations.scores(self._policy)
        trained = {number: scores[number] for number in numbers if number > 0 and number in scores}
        labels = {numbers[0]: "last"}
        if trained:
            number = best(trained)
            labels[number] = "best, last" if number == numbers[0] else "best"
        self._store.versions.label(self._policy, labels)

    async def retain(self, pending: Set[int]) -> None:
        """Remove unneeded state files, moments and tokens.

        ``pending``: versions without a score yet. A kept file that is damaged or cannot be rewritten stays, and is
        reported once.
        """
        async with self._tidying:
            surplus, heavy = self._prune(pending)
            if surplus or heavy:
                sizes, problems = await asyncio.to_thread(self._make_room, surplus, heavy)
                for version, size in sizes.items():
                    await self._store.patiently(partial(self._store.versions.strip, version, size))
                for problem in problems:
                    self._tell(problem)
            await self._shrink()

    async def tidy(self, pending: Set[int]) -> None:
        if monotonic() >= self._due:
            self._due = monotonic() + INTERVAL
            with contextlib.suppress(DatabaseLocked):  # the next call does it
                await self.retain(pending)

    def _prune(self, pending: Set[int]) -> tuple[list[Path], list[Version]]:
        candidates, bests = self._store.versions.candidates(self._policy), self._evaluations.best_of_each(self._policy)
        files, moments = keep({v.number: v.resumable for v in candidates}, bests, self._every, self.given)
        played = self._played([version.number for version in candidates])
        needed = (
            files | pending | played | self._store.versions.wanted(self._policy).keys() | self._speaking(candidates)
        )
        needed |= self._store.served.numbers(self._policy).keys()
        surplus = [v for v in candidates if v.number not in needed and not self._store.served.holds(v.id)]
        self._store.versions.prune(*(version.id for version in surplus))
        whole = moments | pending
        heavy = [v for v in candidates if v.number in needed and v.number not in whole and v.resumable]
        return [Path(version.path) for version in surplus], heavy

    def _speaking(self, candidates: Sequence[Version]) -> Set[int]:
        open_ = self._store.open_plays.speaking(self._task)
        return {one.number for one in candidates if self._held(one) or (one.number, one.checksum) in open_}

    def _make_room(self, surplus: list[Path], heavy: list[Version]) -> tuple[dict[int, int], list[str]]:
        self._store.versions.barrier()  # else a power cut could bring back rows without their files or moments
        reach(Point.RETAIN_MARKED)
        sizes, problems = {}, []
        for file in surplus:
            try:
                file.unlink(missing_ok=True)
            except OSError as error:  # the next start of the task removes it
                problems.append(f"{file} cannot be removed: {error.strerror}.")
            reach(Point.RETAIN_REMOVED)
        for version in heavy:
            try:
                sizes[version.id] = strip_moments(Path(version.path), version.checksum)
            except AdapterError as error:
                problems.append(str(error))
        return sizes, problems

    def _tell(self, problem: str) -> None:
        if problem not in self._told:
            self._told.add(problem)
            self._store.telemetry.event("adapter", problem, self._task, "warning")

    async def _shrink(self) -> None:
        if self._token_steps:
            newest = self._store.versions.candidates(self._policy)[0].number
            while self._store.experience.shrink(self._policy, newest - self._token_steps):
                await asyncio.sleep(0)
