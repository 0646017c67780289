"""A version of an environment in a process of its own, to be checked.

Junk may kill that process or block it: no group plays there, and its deaths are not reported. It runs at a low
priority, so that it does not slow the episodes of groups down.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import replace
from types import TracebackType

from marlaas.plugins.messages import Answer

from ..lease import Lease
from ..process.child import Child
from ..process.wire import Watched
from ..protocol import EpisodeOutcome, EpisodeSpec
from ..served_version import ServedVersion

NICENESS = 15


class SubjectProcess:
    """A ``subject.Subject`` during its ``async with`` block, for which the lease must be held."""

    def __init__(self, lease: Lease) -> None:
        self.config = lease.config
        self.timeout = lease.declared.timeout
        self.agents = lease.declared.agents
        self.ranked = lease.declared.ranked
        self.name = lease.declared.name
        self.movable = lease.declared.own and not lease.declared.scored
        self._lease = lease
        self._serving: ServedVersion | None = None
        self._child: Child | None = None
        """What is looked at."""
        self._calmed: set[int] = set()

    async def __aenter__(self) -> SubjectProcess:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def renew(self) -> float:
        """See ``subject.Subject``."""
        await self._stop()
        began = time.monotonic()
        self._serving = self._lease.serving.apart()
        await self._serving.warm()
        return time.monotonic() - began

    async def play(self, spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
        """See ``subject.Subject``."""
        serving = self._serving
        if serving is None or serving.health.resting is not None:  # it died too often, which was reported
            await self.renew()
            return await self.play(spec, answer)
        self._calm(serving.pids)
        return await serving.play(self._lease.declared.name, replace(spec, data=self._lease.data), answer)

    async def watch(self) -> None:
        """See ``subject.Subject``."""
        if self._serving is None:
            await self.renew()
        assert self._serving is not None
        self._child = await self._serving.watch()

    async def watched(self) -> Watched:
        """See ``subject.Subject``."""
        child, self._child = self._child, None
        return await child.watched() if child is not None else Watched()

    async def _stop(self) -> None:
        serving, self._serving = self._serving, None
        if serving is not None:
            await serving.stop("its check is over")

    def _calm(self, pids: Iterable[int]) -> None:
        for pid in set(pids) - self._calmed:
            with contextlib.suppress(OSError):  # it may just have ended
                os.setpriority(os.PRIO_PGRP, pid, NICENESS)
            self._calmed.add(pid)
