"""When a policy is measured: untrained and every so many steps, both beside training, and at its end.

Also says when the scores end the task. Scores compare only on one environment version: where training has gone over to
another one, a new series begins with the untrained policy and the version that training has come to.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from ...adapters import is_there, write_blank
from ...errors import Replaced
from ...fleet import Services
from ...spec import EvalSpec
from ...store import Evaluation, Version
from ..background import Background
from ..serving.published import PublishedVersions
from ..serving.retention import Retention
from .early_stop import reached, remark, stalled


class Series(Protocol):
    """A lease, or those of all components of a mixture."""

    @property
    def environment_version(self) -> str:
        """What scores of one series have in common."""


Leased = TypeVar("Leased", bound=Series)
Given = TypeVar("Given", bound=Series, covariant=True)
Taken = TypeVar("Taken", bound=Series, contravariant=True)


class Bound(Protocol[Given]):
    """What is measured on: a task's environment, or all of a mixture's."""

    @property
    def version(self) -> str:
        """The version that training plays on."""

    def bound(self) -> AbstractAsyncContextManager[Given]:
        """See ``TaskEnvironment.bound``."""


class Measurer(Protocol[Taken]):
    """``Evaluator``, or ``MixedEvaluator``."""

    async def evaluate(self, version: Version, lease: Taken) -> Evaluation:
        """See ``Evaluator.evaluate``."""


class Measuring(Generic[Leased]):
    """The evaluations of one policy."""

    def __init__(
        self,
        services: Services,
        spec: EvalSpec,
        policy: int,
        environment: Bound[Leased],
        published: PublishedVersions,
        evaluator: Measurer[Leased],
        retention: Retention,
    ) -> None:
        self._versions = services.store.versions
        self._spec = spec
        self._policy = policy
        self._environment = environment
        self._published = published
        self._evaluator = evaluator
        self._retention = retention
        self._one_at_a_time = asyncio.Lock()
        self.pending: set[int] = set()
        """Numbers of the versions that are being measured."""
        self._running: set[asyncio.Task[None]] = set()

    @property
    def decisive(self) -> bool:
        """Whether a score may end the task."""
        return self._spec.target is not None or self._spec.patience > 0

    @property
    def enough(self) -> bool:
        """Whether the scores are a reason to end the task."""
        if not self.decisive:
            return False
        scores = self._versions.scores(self._policy)
        return reached(scores, self._spec) or stalled(scores, self._spec)

    def remark(self, early: bool) -> str:
        """What there is to say of the scores when the task has ended, before its last step or after it."""
        return remark(self._versions.scores(self._policy), self._spec, early)

    async def settled(self) -> None:
        """Wait for the measurements that have begun."""
        while self._running:
            await asyncio.wait(self._running)
            await asyncio.sleep(0)  # lets a failure cancel the training loop before it goes on

    def first(self, version: Version, background: Background) -> None:
        """Measure the untrained policy, unless that was done. Called when the first step has its groups, so that it
        waits for no measurement."""
        if version.number == 0:
            self._start(version, background)

    def again(self, version: Version, background: Background) -> None:
        """Measure the version that a run goes on from, if it is time and the run before did not finish that."""
        if version.number > 0:
            self.beside(version, background)

    def beside(self, version: Version, background: Background) -> None:
        """Measure a version that is being served while training goes on, if it is time or a series has to begin.

        It holds the version from its first turn of the event loop on, long before the next one can replace it.
        """
        if self._spec.every and (version.number % self._spec.every == 0 or self._switched):
            self._start(version, background)

    async def after(self, version: Version) -> None:
        """Measure the last version, unless that was done."""
        await self._measure(version)

    def _start(self, version: Version, background: Background) -> None:
        task = background.start(self._measure(version))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    @property
    def _switched(self) -> bool:
        """Whether training plays on another environment version than that of the newest series.

        False while something is being measured: many edits in a row cost one series, on the last of them.
        """
        return not self._running and self._versions.series(self._policy) not in (None, self._environment.version)

    async def _measure(self, version: Version) -> None:
        self.pending.add(version.number)
        try:
            with self._published.hold(version):
                async with self._one_at_a_time:
                    while not await self._measured(version):
                        pass
        finally:
            self.pending.discard(version.number)
        self._retention.label()

    async def _measured(self, version: Version) -> bool:
        """Put a version into the series of the environment that serves now, after the untrained policy.

        False where that environment was replaced meanwhile, before the version had a score.
        """
        try:
            async with self._environment.bound() as lease:
                series = lease.environment_version
                known = self._versions.evaluated(self._policy, series)
                if version.number > 0 and 0 not in known:
                    await self._measure_first(version, lease)
                if version.number not in known or series != self._versions.series(self._policy):
                    await self._evaluator.evaluate(version, lease)
        except Replaced:
            return False
        return True

    async def _measure_first(self, like: Version, lease: Leased) -> None:
        """Measure version 0.

        Where its weights were given, its file is kept unless a person deleted it. Else the file is gone by then, and an
        adapter of zeros stands in, which adds nothing to the base either.
        """
        first = self._versions.first(self._policy)
        if self._retention.given:
            if is_there(Path(first.path)):
                async with self._published.lent(first):
                    await self._evaluator.evaluate(first, lease)
            return
        path = Path(like.path).with_name(f"blank-{Path(like.path).name}")
        try:
            checksum = await asyncio.to_thread(write_blank, Path(like.path), path)
            blank = replace(first, name=f"{first.name}-blank", path=str(path), checksum=checksum)
            async with self._published.lent(blank):
                await self._evaluator.evaluate(blank, lease)
        finally:
            with suppress(OSError):  # then the task's next start removes it
                path.unlink()
