"""One of the policies that a task trains, as the task's whole run knows it: opened before training, left after it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from ..fleet import Services
from ..spec import TaskSpec
from ..store import Version
from .recovery import key, open_policy
from .serving.published import PublishedVersions


@dataclass(frozen=True)
class TrainedPolicy:
    """A policy with one incarnation of the workers."""

    task: int
    name: str
    """In the task."""
    number: int
    """In the store."""
    spec: TaskSpec
    """The task as this policy sees it."""
    published: PublishedVersions

    @classmethod
    def of(cls, services: Services, task: int, name: str, spec: TaskSpec) -> TrainedPolicy:
        """A policy of a task, which the store knows from now on."""
        number = services.store.versions.policy(task, name, {})
        return cls(task, name, number, spec, PublishedVersions(services.endpoints))

    @property
    def key(self) -> str:
        """Its name in the trainer."""
        return key(self.task, self.name)

    @property
    def given(self) -> bool:
        """Whether its version 0 holds weights that were trained elsewhere."""
        return bool(self.spec.policy.start)

    async def open(self, services: Services) -> Version:
        """Have the version served at which it stands, and return it.

        Raises as ``open_policy`` and ``PublishedVersions.publish`` do.
        """
        version = await open_policy(services, self.task, self.number, self.name, self.spec)
        await self.published.publish(version, services.router.shares(self.task, self.name))
        return version

    async def leave(self, services: Services) -> None:
        """Free the trainer and the sampler; a worker that is gone has nothing to free."""
        await asyncio.gather(services.trainer.close(self.key), self.published.clear(), return_exceptions=True)
