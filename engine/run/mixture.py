"""The environments of one task: one, or the components of a mixture, each with its own versions and held-out prompts.

Which component a group is played on follows from the group's number and the shares. A component numbers its own groups,
so that it draws its instances one after the other, whatever the others do.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256

from ..environments import EnvironmentService, Lease
from ..spec import Interleaving, TaskSpec, components_of
from ..store import ExperienceTable
from .environment import History, TaskEnvironment


@dataclass(frozen=True)
class Component:
    """One environment of a task."""

    name: str
    """Empty where the task has no mixture."""
    share: float
    """Of the groups and of the score; the shares of all sum to 1."""
    spec: TaskSpec
    """The task as it would be with this environment alone."""
    environment: TaskEnvironment


class Mixture:
    """All environments of one task."""

    def __init__(
        self,
        service: EnvironmentService,
        spec: TaskSpec,
        experience: ExperienceTable,
        policy: int,
        tell: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        """``policy``: the first that is trained, whose stored groups say which versions were played; ``tell`` as in
        ``TaskEnvironment``."""

        def component(name: str, own: TaskSpec, share: float) -> Component:
            history = History(experience.first_environment(policy, name), experience.last_environment(policy, name))
            return Component(name, share / sum(shares), own, TaskEnvironment(service, own, history, tell))

        shares = [part.share for part in spec.mixture] or [1.0]
        self.components = tuple(
            component(name, own, share) for (name, own), share in zip(components_of(spec).items(), shares, strict=True)
        )
        self._order = Interleaving(shares)

    def of(self, number: int) -> tuple[Component, int]:
        """The component that group ``number`` is played on, and the group's number among those of that component."""
        place, own = self._order.of(number)
        return self.components[place], own

    def before(self, number: int) -> list[int]:
        """How many of the first ``number`` groups are each component's."""
        return self._order.before(number)

    @property
    def waits_for(self) -> str:
        """On which replaced version groups under way still play, in words; empty where there is none."""
        return next(filter(None, (one.environment.waits_for for one in self.components)), "")

    async def check(self) -> None:
        """Raise ``Blocked`` where no version of an environment can serve the task; the sentence names it."""
        for one in self.components:
            await one.environment.check()


@dataclass(frozen=True)
class Leases:
    """A lease on each environment of a mixture, in their order."""

    each: tuple[Lease, ...]

    @property
    def environment_version(self) -> str:
        """The versions of all."""
        return "+".join(lease.environment_version for lease in self.each)


class Together:
    """A mixture as one environment, to be measured on."""

    def __init__(self, components: Sequence[Component]) -> None:
        self._components = components

    @property
    def series(self) -> str:
        """The key of scores on the versions that the task plays on; empty until each is known."""
        keys = [one.environment.series for one in self._components]
        return mixed_series({one.name: one.share for one in self._components}, keys) if all(keys) else ""

    @asynccontextmanager
    async def bound(self) -> AsyncIterator[Leases]:
        """Leases on the versions that serve at the moment. Raises ``Blocked`` as ``TaskEnvironment`` does."""
        async with AsyncExitStack() as stack:
            bound = [await stack.enter_async_context(one.environment.bound()) for one in self._components]
            yield Leases(tuple(bound))


def mixed_series(shares: Mapping[str, float], keys: Sequence[str]) -> str:
    """The key of a mixture's scores, from those of its components: twelve hexadecimal digits.

    ``shares`` by name, and ``keys`` in their order: the score is a mean by share.
    """
    content = json.dumps([[*shares.items()], [*keys]])
    return sha256(content.encode()).hexdigest()[:12]
