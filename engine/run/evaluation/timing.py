"""When a policy is measured: untrained and every so many steps, both beside training, and at its end.

Also says when the scores end the task. Scores compare only within a series: where training has gone over to other code,
a new one begins with the untrained policy and the version that training has come to.

Where evaluations take longer than the steps between them, at most one waits for the one that runs, and the newest wins.
A deterministic task leaves none out: its training waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Generic, Protocol, TypeVar, cast

from ...adapters import is_there, write_blank
from ...errors import Replaced
from ...fleet import Services
from ...spec import TaskSpec
from ...store import Evaluation, Version
from ...trajectories import Split
from ..background import Background
from ..serving.published import PublishedVersions
from ..serving.retention import Retention
from .scores import reached, remark, stalled

TOO_OFTEN = (
    "Evaluations take longer than the steps between them, so some are left out: raise 'eval.every', or lower"
    " 'eval.prompts' or 'eval.samples'."
)


Leased = TypeVar("Leased")
"""A lease, or those of all components of a mixture."""
Measured = Callable[[], Awaitable[None]]
"""What is called after an evaluation."""
Given = TypeVar("Given", covariant=True)
Taken = TypeVar("Taken", contravariant=True)


async def nothing() -> None:
    """What is called where nobody wants to know."""


class Bound(Protocol[Given]):
    """What is measured on: an environment, or all of a mixture."""

    @property
    def series(self) -> str:
        """The key of scores on what training plays on."""

    def bound(self) -> AbstractAsyncContextManager[Given]:
        """See ``TaskEnvironment.bound``."""


class Measurer(Protocol[Taken]):
    """``Evaluator``, or ``MixedEvaluator``."""

    @property
    def tell(self) -> Callable[[str], None]:
        """Writes a warning into the task's log, once."""

    def series(self, lease: Taken) -> str:
        """See ``Evaluator.series``."""

    async def evaluate(self, version: Version, lease: Taken) -> Evaluation:
        """See ``Evaluator.evaluate``."""


class Measuring(Generic[Leased]):
    """The evaluations of one policy."""

    def __init__(
        self,
        services: Services,
        spec: TaskSpec,
        policy: int,
        environment: Bound[Leased],
        published: PublishedVersions,
        evaluator: Measurer[Leased],
        retention: Retention,
        suite: str = "",
        measured: Measured = nothing,
    ) -> None:
        """``suite``: the name of the suite that is measured; empty for the task's own environment.

        ``measured`` is called after each evaluation; what it raises ends the training.
        """
        self._tell_measured = measured
        self._suite = suite
        self._versions = services.store.versions
        self._evaluations = services.store.evaluations.of(suite, cast(Split, spec.eval.split))
        self._spec = spec.eval
        self._leaves_out = not spec.train.deterministic
        self._policy = policy
        self._environment = environment
        self._published = published
        self._evaluator = evaluator
        self._retention = retention
        self._one_at_a_time = asyncio.Lock()
        self.pending: set[int] = set()
        """Numbers of the versions that are being measured."""
        self._running: dict[asyncio.Task[None], Version] = {}
        """Measurements beside training, those that wait included."""
        self._now: Version | None = None
        """The one that is being measured, not waiting."""

    @property
    def decisive(self) -> bool:
        """Whether a score may end the task."""
        return self._spec.target is not None or self._spec.patience > 0

    @property
    def enough(self) -> bool:
        """Whether the scores are a reason to end the task."""
        if not self.decisive:
            return False
        scores = self._evaluations.scores(self._policy)
        return reached(scores, self._spec) or stalled(scores, self._spec)

    def remark(self, early: bool) -> str:
        """What there is to say of the scores when the task has ended, before its last step or after it."""
        return remark(self._evaluations.scores(self._policy), self._spec, early)

    async def settled(self, but: int = 0) -> None:
        """Wait until at most ``but`` of the measurements that have begun are left."""
        while len(self._running) > but:
            await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
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
        self._leave_out()
        await self._measure(version)

    def _start(self, version: Version, background: Background) -> None:
        self._leave_out()
        task = background.start(self._measure(version))
        self._running[task] = version
        task.add_done_callback(self._running.pop)

    def _leave_out(self) -> None:
        """A newer version is to be measured: what still waits for its turn is left out. The untrained one is measured
        with the next that is."""
        for task, version in self._running.items() if self._leaves_out else ():
            if version is not self._now:
                task.cancel()
                if version.number > 0:
                    self._evaluator.tell(TOO_OFTEN)

    @property
    def _switched(self) -> bool:
        """Whether training plays on an environment of another series than the newest.

        False while something is being measured: many edits in a row cost one series, on the last of them.
        """
        return not self._running and self._evaluations.series(self._policy) not in (None, self._environment.series)

    async def _measure(self, version: Version) -> None:
        self.pending.add(version.number)
        try:
            with self._published.hold(version):
                async with self._one_at_a_time:
                    self._now = version
                    while not await self._measured(version):
                        pass
        finally:
            if self._now is version:
                self._now = None
            self.pending.discard(version.number)
        self._retention.label()
        await self._tell_measured()

    async def _measured(self, version: Version) -> bool:
        """Put a version into the series of the environment that serves now, after the untrained policy.

        False where that environment was replaced meanwhile, before the version had a score.
        """
        try:
            async with self._environment.bound() as lease:
                series = self._evaluator.series(lease)
                known = self._evaluations.measured(self._policy, series)
                if version.number > 0 and 0 not in known:
                    await self._measure_first(version, lease)
                if version.number not in known or series != self._evaluations.series(self._policy):
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
        place = f"blank-{self._suite}-" if self._suite else "blank-"
        path = Path(like.path).with_name(f"{place}{Path(like.path).name}")
        try:
            checksum = await asyncio.to_thread(write_blank, Path(like.path), path)
            blank = replace(first, name=f"{first.name}-{place.rstrip('-')}", path=str(path), checksum=checksum)
            async with self._published.lent(blank):
                await self._evaluator.evaluate(blank, lease)
        finally:
            with suppress(OSError):  # then the task's next start removes it
                path.unlink()
