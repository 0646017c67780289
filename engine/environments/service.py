"""The environments of one engine: every plugin in the folders, each in processes of its own, reloaded as files change.

No code of a plugin ever runs in this process.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from marlaas.plugins.messages import Answer, Ask
from marlaas.plugins.parameters import complete

from ..errors import ConfigError, EnvironmentFailure, EnvironmentMissing
from ..home import EnvironmentSettings
from .dependencies.interpreters import Interpreters
from .health import Standstill
from .names import find
from .nodes.remote import RemoteNode
from .outcomes import OutcomeCounts
from .plugin import unserved
from .probe import first_ask
from .process.wire import Described
from .protocol import (
    DataFacts,
    EnvironmentEvent,
    EnvironmentInfo,
    EpisodeOutcome,
    EpisodeSpec,
    Opens,
    Ranking,
)
from .registry import Registry
from .served_version import Lease, ServedVersion, settings_of

FIRST_PROOFS = 5.0
"""Seconds that the start waits for plugins to be proven; slower ones are served once they are."""


class EnvironmentService:
    """Start it once; then ``bind`` a version for a group, ``play`` its episodes, and release the lease."""

    def __init__(
        self,
        folders: Sequence[Path],
        scratch: Path,
        on_event: Callable[[EnvironmentEvent], None] | None = None,
        only: Collection[str] | None = None,
        needed: Callable[[], Set[str] | None] = lambda: None,
        interpreters: Interpreters | None = None,
        earlier: Mapping[tuple[str, str], Sequence[Standstill]] = MappingProxyType({}),
    ) -> None:
        """``folders``: where plugins lie; a plugin in a later folder hides one of the same name in an earlier one.
        ``only``: names of the plugins to serve, of all that lie there. ``needed``: versions that may be needed again;
        where it returns None, all snapshots are kept. ``interpreters``: what plugins run on; without it, their
        libraries lie below ``scratch``. ``earlier``: by plugin and version, what ``standstills`` gave last."""
        interpreters = interpreters or Interpreters(scratch / "venvs", EnvironmentSettings())
        self.outcomes = OutcomeCounts()
        """How the episodes ended for which ``counts`` was set."""
        tell = on_event or (lambda event: None)
        self._registry = Registry(folders, scratch, interpreters, tell, only, needed, earlier)

    async def start(self) -> None:
        """Serve the plugins in the folders, then keep watching.

        Returns when every plugin is proven or has failed, but at the latest after ``FIRST_PROOFS`` seconds.
        """
        if proofs := await self._registry.start():
            await asyncio.wait(proofs, timeout=FIRST_PROOFS)

    async def stop(self) -> None:
        """End the watch and every process; no child outlives this call."""
        await self._registry.stop()

    def use_nodes(self, nodes: Sequence[RemoteNode]) -> None:
        """Start further processes on these nodes, too, from now on, and begin nothing more on others.

        What is under way there is played to its end.
        """
        self._registry.reach.use(nodes)

    async def scan(self) -> list[asyncio.Task[None]]:
        """Read the folders at once; returns the proofs that are under way because of what changed."""
        return await self._registry.scan()

    async def reload(self, plugin: str) -> None:
        """Read a plugin again and start its newest version anew, which also ends its rest; groups that play finish.

        Returns when the new process serves. Raises ``EnvironmentMissing`` where there is no plugin of that name, and
        ``EnvironmentFailure``, with place and reason, where it does not load: what served before then goes on.
        """
        await self._registry.reload(plugin)

    async def refresh(self, name: str) -> None:
        """Read the plugin of an environment as its files are now, and wait until it is known whether that serves.

        Does nothing for a name that no plugin serves, and costs a look at the files where they did not change.
        """
        with contextlib.suppress(EnvironmentMissing):
            plugin = self._registry.named(name)
            await self._registry.refresh(plugin.name if plugin else self.resolve(name).name.partition("/")[0])

    def infos(self) -> tuple[EnvironmentInfo, ...]:
        """Every environment, sorted by name; then the plugins that another one hides."""
        return self._registry.infos()

    def standstills(self, plugin: str, version: str) -> list[Standstill]:
        """The parameters under which environments of a version have only failed; none where it was never started."""
        known = self._registry.plugins.get(plugin)
        serving = known.serving(version) if known is not None else None
        return serving.health.standstills() if serving is not None else []

    def processes(self) -> list[tuple[str, int]]:
        """The name of the plugin and the process id, for every process of a plugin."""
        plugins = sorted(self._registry.plugins.items())
        return [(name, pid) for name, plugin in plugins for pid in plugin.processes()]

    def known(self, name: str) -> bool:
        """Whether ``resolve`` finds an environment of this name: for every group, so without a look at all of them."""
        if self._registry.named(name) is not None:
            return True
        with contextlib.suppress(EnvironmentMissing):
            self.resolve(name)
            return True
        return False

    def resolve(self, name: str) -> EnvironmentInfo:
        """The environment that a task calls ``name``; raises ``EnvironmentMissing`` where there is none.

        A plugin that is there but never served is found under any of its names, in state broken or loading.
        """
        try:
            return find(name, self.infos())
        except EnvironmentMissing:
            if heir := self._registry.heirs.get(name.partition("/")[0]):
                hint = f"The same content is served as {heir}: give it its name back, or submit the task for {heir}."
                raise EnvironmentMissing(f"The plugin of {name!r} was renamed.", hint) from None
            raise

    def full_name(self, name: str, version: str | None) -> str:
        """The name with the plugin of ``version``; ``name`` itself where the version is not known any more."""
        with contextlib.suppress(EnvironmentMissing):
            if version is not None:
                return f"{self._registry.owner(version).name}/{name.rpartition('/')[2]}"
        return name

    def validate(self, name: str, config: dict[str, Any], version: str | None = None) -> dict[str, Any]:
        """``config`` typed and with its defaults, for the newest version or the one asked for.

        ``ConfigError`` says what is wrong with it; ``EnvironmentFailure`` that no version serves, or that it rests with
        these parameters. Starts no process: where the version has none, the parameters are not checked.
        """
        environment = name.rpartition("/")[2]
        if version is None:
            info = self.resolve(name)
            plugin, _, environment = info.name.rpartition("/")
            if not info.version:
                raise _no_version(info)
            serving = self._registry.plugins[plugin].serving()
        else:
            owner = self._registry.owner(version)
            plugin, serving = owner.name, owner.serving(version)
        if serving is not None and (refused := serving.refused.get(environment)):
            raise unserved(f"{plugin}/{environment}", refused)
        if serving is None or environment not in serving.environments:
            return config
        completed = _completed(serving, environment, config)
        if rest := serving.health.resting_with(settings_of(environment, completed)):
            raise unserved(plugin, rest)
        return completed

    async def bind(
        self,
        name: str,
        version: str | None = None,
        config: Mapping[str, Any] | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> Lease:
        """Hold one version for a group: the newest good one, or ``version``, started again where needed.

        ``config`` are the parameters that it is for; ``ConfigError`` where they do not fit that version. ``Lease.rest``
        says whether it rests with them. ``data`` takes the place of the environment's own rows (``Source.record``).
        """
        environment, by_version = name.rpartition("/")[2], version is not None
        if version is not None:  # it may have what the newest has lost, and its plugin may have gone
            plugin = self._registry.owner(version)
        else:
            plugin = self._registry.named(name) or self._registry.plugins[self.resolve(name).name.partition("/")[0]]
        serving = await plugin.acquire(environment, version)
        full, described = f"{plugin.name}/{environment}", serving.environments[environment]
        lease = Lease(full, described, serving, by_version=by_version)
        try:
            lease.data = await _given(serving, described, data)
        except BaseException:
            lease.release()
            raise
        if config is not None:
            try:
                lease.config = _completed(serving, environment, config)
            except BaseException:
                lease.release()
                raise
        return lease

    async def play(self, lease: Lease, spec: EpisodeSpec, answer: Answer, counts: bool = False) -> EpisodeOutcome:
        """Play one episode. What the plugin does wrong is in the outcome; what ``answer`` raises is raised here.

        ``counts``: a policy answers, so the outcome is counted, and an environment that only fails rests; not so in
        checks, which may answer junk on purpose. Cancelling this coroutine cancels the episode in its process.
        """
        if lease.released:
            raise ValueError(f"the lease of {lease.environment} was released")
        spec = spec if lease.data is None else replace(spec, data=lease.data)
        outcome = await lease.serving.play(lease.declared.name, spec, answer, counts)
        if counts:
            self.outcomes.add(lease.environment, lease.environment_version, outcome)
        return outcome

    async def room(self, lease: Lease) -> None:
        """Wait until no episode waits for a place in a process of the lease's version."""
        await lease.serving.room()

    async def rank(
        self, lease: Lease, members: Sequence[EpisodeOutcome], counts: bool = False
    ) -> Ranking | EpisodeOutcome:
        """Rank the members of a group; an outcome says why that failed.

        ``counts``: whether their episodes counted; where the ranking fails, these count as failed."""
        if lease.released:
            raise ValueError(f"the lease of {lease.environment} was released")
        verdict = await lease.serving.rank(lease.declared.name, members)
        if counts and isinstance(verdict, EpisodeOutcome):
            self.outcomes.overturn(lease.environment, lease.environment_version, members, verdict)
        return verdict

    async def facts(self, lease: Lease, survey: bool = False) -> DataFacts:
        """What there is to know of the rows that the lease's episodes draw from; ``survey``: also what is in them.

        Raises ``EnvironmentFailure`` where they cannot be had, in a sentence that says why.
        """
        return await lease.serving.facts(lease.declared.name, lease.data, survey)

    async def look(self, lease: Lease, spec: EpisodeSpec, opens: Opens | None = None) -> Ask | EpisodeOutcome:
        """The episode's first ask, without a model; how it ended where it did so before one.

        ``opens`` gives it an address for its programs, whose first ask is then the episode's.
        """
        return await first_ask(lambda spec, answer: self.play(lease, spec, answer), spec, opens)

    async def peek(self, lease: Lease, spec: EpisodeSpec) -> Ask:
        """The episode's first ask, without a model; ``EnvironmentFailure`` where it ends before one."""
        reached = await self.look(lease, spec)
        if isinstance(reached, Ask):
            return reached
        reason = reached.failure.message if reached.failure is not None else reached.status
        raise EnvironmentFailure(f"{lease.environment} ended before its first question: {reason}.")


async def _given(
    serving: ServedVersion, described: Described, data: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    """The rows that a task names, where the processes of a version can read them."""
    if data is None and described.rows != "task":
        return None
    if data is None:
        raise ConfigError(f"{described.name} has no rows of its own.", "Name some in a task file, below [data].")
    if not described.rows:
        raise ConfigError(f"{described.name} draws its tasks from no rows, so 'data.path' would have no effect.")
    try:
        return await serving.lent(data)
    except OSError as error:
        raise EnvironmentFailure(f"the rows cannot be read: {error.strerror}.", where=str(data["path"])) from None


def _completed(serving: ServedVersion, environment: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters as a version completes them; ``ConfigError`` where they do not fit it."""
    try:
        return complete(serving.environments[environment].parameters, config, environment)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _no_version(info: EnvironmentInfo) -> EnvironmentFailure:
    """Why no version of a plugin serves, with the place in its author's file."""
    plugin = info.name.partition("/")[0]
    if info.failure is None:
        return EnvironmentFailure(f"{plugin} is being loaded.")
    return unserved(plugin, info.failure)
