"""A task's environment: which version serves it (follow or pin), under which validated configuration."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from ..environments.lease import Lease
from ..environments.service import EnvironmentService
from ..errors import ConfigError, EnvironmentFailure
from ..rollout.episodes import Play
from ..spec import TaskSpec
from .endings import Blocked


class TaskEnvironment:
    """The environment of one task. Raises ``Blocked`` where no version can serve it now."""

    def __init__(self, service: EnvironmentService, spec: TaskSpec, pinned: str | None) -> None:
        self._service = service
        self._spec = spec
        self._pinned = pinned if spec.environment_version == "pin" else None

    def check(self) -> None:
        """Raise ``Blocked`` where the environment is missing or refuses the parameters, before anything is loaded."""
        _ = self.config

    @property
    def config(self) -> dict[str, Any]:
        """The environment's parameters with defaults filled."""
        try:
            return self._service.validate(self._spec.environment, self._spec.environment_config)
        except (ConfigError, EnvironmentFailure) as error:
            raise Blocked(f"blocked: {error}") from error

    @asynccontextmanager
    async def bound(self) -> AsyncIterator[Lease]:
        """A lease on the version that serves now: a group never mixes versions."""
        try:
            lease = await self._service.bind(self._spec.environment, self._pinned)
        except (ConfigError, EnvironmentFailure) as error:
            raise Blocked(f"blocked: {error}") from error
        if self._spec.environment_version == "pin":
            self._pinned = self._pinned or lease.environment_version
        try:
            yield lease
        finally:
            lease.release()

    def player(self, lease: Lease) -> Play:
        """Episodes on one lease."""
        return partial(self._service.play, lease)
