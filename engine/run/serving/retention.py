"""Which versions of a policy are named, what stays of them on the disk, and which trajectories keep their tokens."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence, Set
from functools import partial
from pathlib import Path

from ...adapters import RetentionVersion, keep, strip_moments
from ...clock import monotonic
from ...errors import AdapterError, DatabaseLocked
from ...faults import Point, reach
from ...store import Store, Version, best

INTERVAL = 1.0
"""Seconds between two calls of ``retain`` by ``tidy``."""


class Retention:
    """Names and keeps the versions of one policy."""

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
        """Every ``every``-th version stays; trajectories of the last ``token_steps`` steps keep their tokens, 0: all.

        ``played`` says which of the given version numbers are in opponent pools; ``given`` whether version 0 holds
        weights that were trained elsewhere. ``suite``: whose score says which version is the best; empty: that on the
        task's own held-out prompts. ``held`` says whether a version is being served, or loaded for that.
        """
        self.given = given
        """Whether version 0 holds weights that were trained elsewhere."""
        self._played = played
        self._held = held
        self._store = store
        self._evaluations = store.evaluations.of(suite)
        self._versions = store.versions
        self._experience = store.experience
        self._open_plays = store.open_plays
        self._served = store.served
        self._telemetry = store.telemetry
        self._task = task
        self._told: set[str] = set()
        self._policy = policy
        self._every = every
        self._token_steps = token_steps
        self._due = 0.0
        self._tidying = asyncio.Lock()

    def label(self) -> None:
        """Name the last version, and the best trained one of the newest evaluation series whose file is there."""
        numbers = [version.number for version in self._versions.candidates(self._policy)]
        scores = self._evaluations.scores(self._policy)
        trained = {number: scores[number] for number in numbers if number > 0 and number in scores}
        labels = {numbers[0]: "last"}
        if trained:
            number = best(trained)
            labels[number] = "best, last" if number == numbers[0] else "best"
        self._versions.label(self._policy, labels)

    async def retain(self, pending: Set[int]) -> None:
        """Remove state files that are not to be kept, and moments and tokens that nobody needs.

        ``pending`` are versions whose score is not known yet: one may turn out to be the best. A kept file that is
        damaged, or that cannot be written again, stays as it is and is reported once.
        """
        async with self._tidying:
            surplus, heavy = self._prune(pending)
            if surplus or heavy:
                sizes, problems = await asyncio.to_thread(self._make_room, surplus, heavy)
                for version, size in sizes.items():
                    await self._store.patiently(partial(self._versions.strip, version, size))
                for problem in problems:
                    self._tell(problem)
            await self._shrink()

    async def tidy(self, pending: Set[int]) -> None:
        """``retain``, unless that was done less than a second ago."""
        if monotonic() >= self._due:
            self._due = monotonic() + INTERVAL
            with contextlib.suppress(DatabaseLocked):  # the next call does it
                await self.retain(pending)

    def _prune(self, pending: Set[int]) -> tuple[list[Path], list[Version]]:
        """Record which versions go; return their files, and the versions of which only the adapter stays."""
        candidates, bests = self._versions.candidates(self._policy), self._evaluations.best_of_each(self._policy)
        last = candidates[0]
        known = (RetentionVersion(v.number, v.resumable, v.number in bests, v is last) for v in candidates)
        kept = keep(known, self._every, self.given)
        played = self._played([version.number for version in candidates])
        needed = kept.files | pending | played | self._versions.wanted(self._policy).keys() | self._speaking(candidates)
        needed |= self._served.numbers(self._policy).keys()
        surplus = [v for v in candidates if v.number not in needed and not self._served.holds(v.id)]
        self._versions.prune(*(version.id for version in surplus))
        whole = kept.moments | pending
        heavy = [v for v in candidates if v.number in needed and v.number not in whole and v.resumable]
        return [Path(version.path) for version in surplus], heavy

    def _speaking(self, candidates: Sequence[Version]) -> Set[int]:
        """Versions that speak in plays under way, and in those that an earlier run began and this one may take up."""
        open_ = self._open_plays.speaking(self._task)
        return {one.number for one in candidates if self._held(one) or (one.number, one.checksum) in open_}

    def _make_room(self, surplus: list[Path], heavy: list[Version]) -> tuple[dict[int, int], list[str]]:
        """Remove and strip files, in a thread, for it waits for the disk; returns the sizes of stripped files, by
        version, and what went wrong."""
        self._versions.barrier()  # else a power cut could bring back rows whose files or moments are gone
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
            self._telemetry.event("adapter", problem, self._task, "warning")

    async def _shrink(self) -> None:
        """Drop tokens that nobody needs, in small transactions, so that nobody waits for long."""
        if self._token_steps:
            newest = self._versions.candidates(self._policy)[0].number
            while self._experience.shrink(self._policy, newest - self._token_steps):
                await asyncio.sleep(0)
