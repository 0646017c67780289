"""A task's environment: which version serves it (follow or pin), under which validated configuration.

Flows in: what the task file says, and the versions that its stored groups were played on. Flows out: leases. A task
that follows goes on with the last version that takes its parameters where a newer one does not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from ..environments.lease import Lease
from ..environments.plugin import said
from ..environments.service import EnvironmentService
from ..errors import ConfigError, EnvironmentFailure, EnvironmentMissing
from ..rollout.episodes import Play
from ..spec import TaskSpec
from .endings import Blocked


@dataclass(frozen=True)
class History:
    """Environment versions of a policy's stored groups; None where there are none yet."""

    first: str | None = None
    last: str | None = None


class TaskEnvironment:
    """The environment of one task. Raises ``Blocked`` where no version can serve it now."""

    def __init__(
        self,
        service: EnvironmentService,
        spec: TaskSpec,
        history: History = History(),
        tell: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        """``tell`` hears, once each, of versions that the task does not follow to."""
        self._service = service
        self._spec = spec
        self._tell = tell
        self._told: set[str] = set()
        self._pinned = history.first if spec.environment_version == "pin" else None
        self._fits = history.last
        self._name = service.full_name(spec.environment, history.last)
        """With its plugin, once that is known: another plugin may come to have an environment of the same name."""
        self.version = ""
        """Of the newest lease: what the task plays on."""

    def check(self) -> None:
        """Raise ``Blocked`` where no version can serve the task, before anything is loaded."""
        try:
            self._validate()
        except (ConfigError, EnvironmentFailure) as error:
            raise Blocked(f"blocked: {error}") from error

    @asynccontextmanager
    async def bound(self) -> AsyncIterator[Lease]:
        """A lease on the version that serves now: a group never mixes versions."""
        try:
            lease = await self._bind()
        except (ConfigError, EnvironmentFailure) as error:
            raise Blocked(f"blocked: {error}") from error
        if rest := lease.rest:
            lease.release()
            raise Blocked(f"blocked: environment {lease.declared.name} does not serve: {said(rest)}")
        self.version = self._fits = lease.environment_version
        self._name = lease.environment
        if self._spec.environment_version == "pin":
            self._pinned = self.version
        try:
            yield lease
        finally:
            lease.release()

    def player(self, lease: Lease) -> Play:
        """Episodes on one lease, answered by a policy."""
        return partial(self._service.play, lease, counts=True)

    async def _bind(self) -> Lease:
        config = self._spec.environment_config
        if self._pinned is not None:
            return await self._service.bind(self._spec.environment, self._pinned, config)
        try:
            return await self._service.bind(self._current_name(), None, config)
        except EnvironmentMissing:
            raise
        except ConfigError as error:
            if self._fits is None:
                raise
            try:
                lease = await self._service.bind(self._name, self._fits, config)
            except EnvironmentMissing:
                raise error from None
            self._stays(error)
            return lease

    def _validate(self) -> None:
        config = self._spec.environment_config
        if self._pinned is not None:
            self._service.validate(self._spec.environment, config, self._pinned)
            return
        try:
            self._service.validate(self._current_name(), config)
        except EnvironmentMissing:
            raise
        except ConfigError as error:
            if self._fits is None:
                raise
            try:
                self._service.validate(self._name, config, self._fits)
            except EnvironmentMissing:
                raise error from None

    def _current_name(self) -> str:
        """The full name, unless that is gone: then as the task file has it."""
        if self._name != self._spec.environment:
            try:
                self._service.resolve(self._name)
            except EnvironmentMissing:
                return self._spec.environment
        return self._name

    def _stays(self, error: ConfigError) -> None:
        """Tell that a newer version does not take the task's parameters."""
        if str(error) not in self._told:
            self._told.add(str(error))
            sentence = f"The task stays on version {self._fits} of its environment, for the newest does not take its"
            self._tell(f"{sentence} parameters: {error}")
