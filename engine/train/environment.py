"""A task's environment, or those of its mixture, and the version that serves it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from marlaas.plugins.messages import Answer

from ..environments import EnvironmentService, EpisodeOutcome, EpisodeSpec, Lease, unserved
from ..errors import Blocked, ConfigError, EnvironmentFailure, EnvironmentMissing
from ..rollout import RunEnvironment, Unplayable
from ..spec import Interleaving, TaskSpec, check_declared, components_of
from ..store import ExperienceTable
from ..trajectories import Failure
from .scores import series_of

# A task's environment: which version serves it (follow or pin), under which validated configuration.
#
# A task that follows stays on the last version that takes its parameters and has its agents, if a newer one does
# not.

T = TypeVar("T")
LOOKING = 5.0
"""Seconds of looking through a file of rows after which people are told why their task does not begin."""


@dataclass(frozen=True)
class History:
    """Environment versions of a policy's stored groups; None if there are none yet."""

    first: str | None = None
    last: str | None = None


class TaskEnvironment:
    """The environment of one task. Raises ``Blocked`` if no version can serve it."""

    def __init__(
        self,
        service: EnvironmentService,
        spec: TaskSpec,
        history: History = History(),
        tell: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        """``tell`` is told of each version that the task does not follow to, and of rows that take long to find."""
        self._service = service
        self._spec = spec
        self._tell = tell
        self._told: set[str] = set()
        self._pinned = history.first if spec.environment_version == "pin" else None
        self._fits = history.last
        self._name = service.full_name(spec.environment, history.last)
        """With its plugin, once that is known: another plugin may get an environment of the same name."""
        self.version = ""
        """Version of the newest lease: the one that the task plays on."""
        self.series = ""
        """The key of scores on that version."""
        self._digests: dict[tuple[str, str], str] = {}
        """Of the evaluation rows that the task names, by version of the environment."""
        self._leases: list[Lease] = []
        """Leases of the groups in progress."""

    @property
    def waits_for(self) -> str:
        """On which replaced version groups in progress still play, in words; empty if there is none."""
        return next(filter(None, (lease.ends for lease in self._leases)), "")

    async def check(self) -> None:
        """Raise ``Blocked`` where no version can serve the task, before anything is loaded.

        What was saved before this is called is played from the first group on, unless the task is pinned.
        """
        if self._pinned is None:
            await self._service.refresh(self._current_name())

        async def valid(name: str, version: str | None) -> None:
            self._service.validate(name, self._spec.environment_config, version)
            if version is None:
                check_declared(self._spec, self._service.resolve(name).agents)

        with _blocking():
            await self._fitting(valid)

    @asynccontextmanager
    async def bound(self) -> AsyncIterator[Lease]:
        """A lease on the version that serves at the moment: a group never mixes versions."""
        with _blocking():
            lease = await self._fitting(self._bind)
        if rest := lease.rest:
            lease.release()
            raise Blocked(str(unserved(lease.environment.partition("/")[0], rest)))
        if self.version != lease.environment_version:
            self.series = series_of(lease, self._spec.eval)
        self.version = self._fits = lease.environment_version
        self._name = lease.environment
        if self._spec.environment_version == "pin":
            self._pinned = self.version
        self._leases.append(lease)
        try:
            yield lease
        finally:
            self._leases.remove(lease)
            lease.release()

    async def room(self) -> None:
        """Wait until no episode waits for a place in a process of the version that the newest group plays on."""
        if self._leases:
            await self._service.room(self._leases[-1])

    def player(self, lease: Lease) -> RunEnvironment:
        """Episodes on one lease, answered by a policy; how they end is counted."""

        async def play(spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
            try:
                return await self._service.play(lease, spec, answer, counts=True)
            except Unplayable as error:  # its messages cannot be put to the model
                outcome = EpisodeOutcome("error", failure=Failure(error.message))
                self._service.outcomes.add(lease.environment, lease.environment_version, outcome)
                raise

        return play

    def left(self, outcomes: Sequence[EpisodeOutcome], lease: Lease) -> None:
        """Count episodes that were cancelled because others of their groups were first."""
        for outcome in outcomes:
            self._service.outcomes.add(lease.environment, lease.environment_version, outcome)

    async def _bind(self, name: str, version: str | None) -> Lease:
        """Raises ``ConfigError`` if that version does not take the task's parameters, or has other agents."""
        lease = await self._service.bind(name, version, self._spec.environment_config, self._spec.data.record)
        try:
            check_declared(self._spec, lease.declared.agents)
            if lease.data is not None:
                lease.digest = await self._digest(lease)
        except BaseException:
            lease.release()
            raise
        return lease

    async def _digest(self, lease: Lease) -> str:
        """The hash of the evaluation rows that the task names: other rows are another series of scores."""
        if lease.rows not in self._digests:
            telling = asyncio.get_running_loop().call_later(LOOKING, self._tell_of_rows)
            try:
                self._digests[lease.rows] = (await self._service.facts(lease)).digest
            finally:
                telling.cancel()
        return self._digests[lease.rows]

    def _tell_of_rows(self) -> None:
        name = Path(self._spec.data.path).name
        self._tell(f"The rows of {name} are looked through, once for each content of it; the task begins after that.")

    async def _fitting(self, attempt: Callable[[str, str | None], Awaitable[T]]) -> T:
        """The result of ``attempt`` on the version that the task plays on: the pinned one, else the newest, else, where
        that does not fit the task's parameters and agents, the last that did.

        ``attempt`` gets a name and a version, None for the newest.
        """
        if self._pinned is not None:
            return await attempt(self._spec.environment, self._pinned)
        try:
            return await attempt(self._current_name(), None)
        except EnvironmentMissing:
            raise
        except ConfigError as error:
            if self._fits is None:
                raise
            try:
                found = await attempt(self._name, self._fits)
            except EnvironmentMissing:
                raise error from None
            self._stays(error)
            return found

    def _current_name(self) -> str:
        """The full name; if its plugin is gone, the name in the task file."""
        gone = self._name != self._spec.environment and not self._service.known(self._name)
        return self._spec.environment if gone else self._name

    def _stays(self, error: ConfigError) -> None:
        """Tell that a newer version does not fit the task's parameters, or its agents."""
        if str(error) not in self._told:
            self._told.add(str(error))
            stays = f"The task stays on version {self._fits} of its environment, for the newest does not fit it"
            self._tell(f"{stays}: {error}")


@contextmanager
def _blocking() -> Iterator[None]:
    """Turn failures that a person may repair, or that pass by themselves, into ``Blocked``."""
    try:
        yield
    except (ConfigError, EnvironmentFailure) as error:
        raise Blocked(str(error)) from error


# The environments of one task: one, or the components of a mixture, each with its own versions and held-out prompts.
#
# Which component a group is played on follows from the group's number and the shares. A component numbers its own
# groups, so that it draws its instances one after the other, whatever the others do.


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
        """On which replaced version groups in progress still play, in words; empty if there is none."""
        return next(filter(None, (one.environment.waits_for for one in self.components)), "")

    async def check(self) -> None:
        """Raise ``Blocked`` where no version of an environment can serve the task; the sentence names it."""
        for one in self.components:
            await one.environment.check()
