"""A task's environments and their serving versions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from marlaas.plugins.messages import Answer

from ..environments.plugin import unserved
from ..environments.protocol import EpisodeOutcome, EpisodeSpec
from ..environments.served_version import Lease
from ..environments.service import EnvironmentService
from ..errors import Blocked, ConfigError, EnvironmentFailure, EnvironmentMissing
from ..rollout.conversation import Unplayable
from ..rollout.episodes import RunEnvironment
from ..spec.rules import check_declared
from ..spec.task import EvalSpec, Interleaving, TaskSpec, components_of
from ..store.experience import ExperienceTable
from ..trajectories import Failure

# A following task stays on the last version that fits it.

T = TypeVar("T")
LOOKING = 5.0
"""Seconds of reading rows before people are informed."""


MEASURED = ("prompts", "samples", "temperature", "top_p", "top_k", "min_p", "pass_at_least", "agents", "rotate")
"""Keys of ``[eval]`` that change a score."""


def series_of(lease: Lease, measure: EvalSpec) -> str:
    """Twelve hexadecimal digits: the key of scores with this code, data, parameters and ``[eval]``."""
    how = {key: getattr(measure, key) for key in MEASURED}
    decisive = [lease.environment, lease.code, lease.config, lease.digest, how]
    content = json.dumps(decisive, sort_keys=True, default=repr)
    return sha256(content.encode()).hexdigest()[:12]


History = tuple[str | None, str | None]
"""Environment versions of a policy's first and last stored groups."""


def history_of(experience: ExperienceTable, policy: int, place: str = "") -> History:
    """A policy's history; ``place``: a component or a suite."""
    return experience.first_environment(policy, place), experience.last_environment(policy, place)


class TaskEnvironment:
    """One task's environment. Raises ``Blocked`` if no version can serve it."""

    def __init__(
        self,
        service: EnvironmentService,
        spec: TaskSpec,
        history: History = (None, None),
        tell: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        """``tell`` is called for versions that the task does not follow to, and for slow rows."""
        self._service = service
        self._spec = spec
        self._tell = tell
        self._told: set[str] = set()
        self._pinned = history[0] if spec.environment_version == "pin" else None
        self._fits = history[1]
        self._name = service.full_name(spec.environment, history[1])
        """With its plugin, once that is known: another plugin may get an environment of the same name."""
        self.version = ""
        self.series = ""
        self._digests: dict[tuple[str, str], str] = {}
        """Hashes of the task's evaluation rows, by environment version."""
        self._leases: list[Lease] = []

    @property
    def waits_for(self) -> str:
        return next(filter(None, (lease.ends for lease in self._leases)), "")

    async def check(self) -> None:
        """Raise ``Blocked`` if no version can serve the task, before loading.

        Unless pinned, the task uses everything saved before.
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
        """A lease: a group never mixes versions."""
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
        if self._leases:
            await self._service.room(self._leases[-1])

    def player(self, lease: Lease) -> RunEnvironment:
        async def play(spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
            try:
                return await self._service.play(lease, spec, answer, counts=True)
            except Unplayable as error:
                outcome = EpisodeOutcome("error", failure=Failure(error.message))
                self._service.outcomes.add(lease.environment, lease.environment_version, outcome)
                raise

        return play

    def left(self, outcomes: Sequence[EpisodeOutcome], lease: Lease) -> None:
        for outcome in outcomes:
            self._service.outcomes.add(lease.environment, lease.environment_version, outcome)

    async def _bind(self, name: str, version: str | None) -> Lease:
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
        if lease.rows not in self._digests:
            words = (
                f"The rows of {Path(self._spec.data.path).name} are looked through, once for each content of it; the"
            )
            telling = asyncio.get_running_loop().call_later(LOOKING, self._tell, f"{words} task begins after that.")
            try:
                self._digests[lease.rows] = (await self._service.facts(lease)).digest
            finally:
                telling.cancel()
        return self._digests[lease.rows]

    async def _fitting(self, attempt: Callable[[str, str | None], Awaitable[T]]) -> T:
        """``attempt`` gets a name and a version, None for the newest. The newest fitting the task's parameters and
        agents counts, unless pinned."""
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
        gone = self._name != self._spec.environment and not self._service.known(self._name)
        return self._spec.environment if gone else self._name

    def _stays(self, error: ConfigError) -> None:
        if str(error) not in self._told:
            self._told.add(str(error))
            stays = f"The task stays on version {self._fits} of its environment, for the newest does not fit it"
            self._tell(f"{stays}: {error}")


@contextmanager
def _blocking() -> Iterator[None]:
    try:
        yield
    except (ConfigError, EnvironmentFailure) as error:
        raise Blocked(str(error)) from error


@dataclass(frozen=True)
class Component:
    """One environment of a task."""

    name: str
    share: float
    """Of groups and of the score; all sum to 1."""
    spec: TaskSpec
    environment: TaskEnvironment


class Mixture:
    """All environments of one task.

    A group's number and the shares determine its component; each component numbers its own groups.
    """

    def __init__(
        self,
        service: EnvironmentService,
        spec: TaskSpec,
        experience: ExperienceTable,
        policy: int,
        tell: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        """``policy``: the first trained one; ``tell`` as in ``TaskEnvironment``."""

        def component(name: str, own: TaskSpec, share: float) -> Component:
            environment = TaskEnvironment(service, own, history_of(experience, policy, name), tell)
            return Component(name, share / sum(shares), own, environment)

        shares = [part.share for part in spec.mixture] or [1.0]
        self.components = tuple(
            component(name, own, share) for (name, own), share in zip(components_of(spec).items(), shares, strict=True)
        )
        self._order = Interleaving(shares)

    def of(self, number: int) -> tuple[Component, int]:
        place, own = self._order.of(number)
        return self.components[place], own

    def before(self, number: int) -> list[int]:
        return self._order.before(number)

    @property
    def waits_for(self) -> str:
        return next(filter(None, (one.environment.waits_for for one in self.components)), "")

    async def check(self) -> None:
        for one in self.components:
            await one.environment.check()
