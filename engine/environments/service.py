"""All plugins of one engine's folders, in separate processes, reloaded as files change."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence, Set
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any

from marlaas.plugins.messages import Answer, Ask
from marlaas.plugins.parameters import complete

from ..errors import ConfigError, EnvironmentFailure, EnvironmentMissing
from ..home.settings import EnvironmentSettings
from ..spec.rules import environments_named
from ..trajectories import Failure
from .dependencies import Interpreters
from .files import (
    SUFFIXES,
    Found,
    Snapshots,
    SourceError,
    discover,
    fresh,
    hints,
    plugin_paths,
    read_source,
    shown,
    stamp,
)
from .health import Standstill
from .outcomes import OutcomeCounts
from .plugin import Plugin, unserved
from .pool import ProcessBudget
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
from .served_version import PATIENCE, Lease, ServedVersion, first_ask, settings_of

FIRST_PROOFS = 5.0
TIDY_EVERY = 64
FEWEST = 2
OWN = "own_reward"


class EnvironmentService:
    """``bind`` a version for a group, ``play`` its episodes, release the lease."""

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
        """``folders``: later ones hide plugins of earlier ones. ``only``: plugins to serve. ``needed``: versions that
        may be needed again; None: all. ``interpreters``: default: below ``scratch``. ``earlier``: the last
        ``standstills``."""
        self.outcomes = OutcomeCounts()
        self._plugins: dict[str, Plugin] = {}
        self._folders = tuple(folders)
        self._scratch = scratch
        self._interpreters = interpreters or Interpreters(scratch / "venvs", EnvironmentSettings())
        self._snapshots = Snapshots(scratch / "snapshots")
        self._on_event = on_event or (lambda event: None)
        self._budget = ProcessBudget(scoring=self._interpreters.settings.scoring_workers)
        self._only = only
        self._needed = needed
        self._earlier = dict(earlier)
        self._untidy = TIDY_EVERY
        self._hidden: dict[Path, EnvironmentInfo] = {}
        self._watching: asyncio.Task[None] | None = None
        self._scanning = asyncio.Lock()

    async def start(self) -> None:
        """Returns when every plugin is proven or has failed, or after ``FIRST_PROOFS`` seconds."""
        for folder in self._folders:
            with suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
        self._scratch.mkdir(parents=True, exist_ok=True)
        self._watching = asyncio.get_running_loop().create_task(self._watch())
        await asyncio.sleep(0)  # the first step sets up the watch: nothing saved from here on is missed
        if proofs := await self.scan():
            await asyncio.wait(proofs, timeout=FIRST_PROOFS)

    async def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await asyncio.gather(*(plugin.stop() for plugin in self._plugins.values()))

    async def scan(self) -> list[asyncio.Task[None]]:
        async with self._scanning:
            found = await asyncio.to_thread(discover, self._folders)
            served = {n: path for n, path in found.served.items() if self._only is None or n in self._only}
            plugins = self._plugins.items()
            unseen = {name for name, plugin in plugins if not plugin.removed and plugin.path.parent in found.unread}
            proofs = [await self._update(name, path) for name, path in served.items() if name not in unseen]
            for name, plugin in plugins:
                if name not in served and name not in unseen:
                    plugin.remove()
            self._show_hidden(found, served)
            await self._tidy()
            return [proof for proof in proofs if proof is not None]

    async def reload(self, name: str) -> None:
        """Restart a plugin's newest version and end its rest; running groups finish.

        Raises ``EnvironmentMissing``, or ``EnvironmentFailure``: the earlier version continues.
        """
        async with self._scanning:
            plugin = self._plugins.get(name)
            if plugin is None or plugin.removed:
                known = ", ".join(sorted(name for name, plugin in self._plugins.items() if not plugin.removed))
                raise EnvironmentMissing(f"There is no plugin {name!r}.", f"There are: {known or 'none'}.")
            try:
                proof = plugin.reload(await asyncio.to_thread(read_source, plugin.path))
            except (OSError, SourceError) as error:
                raise EnvironmentFailure(f"{name}: {shown(str(error))}.") from None
        await asyncio.wait((proof,))
        infos = plugin.infos()
        for info in infos:
            if info.failure is not None:
                partly = any(other.failure is None for other in infos)
                raise unserved(info.name if partly else name, info.failure)

    async def refresh(self, name: str) -> None:
        """Read an environment's current files, and wait for the proof."""
        with suppress(EnvironmentMissing):
            plugin = self._named(name) or self._plugins.get(self.resolve(name).name.partition("/")[0])
            if plugin is None or plugin.removed:
                return
            with suppress(OSError, RuntimeError):  # as in ``_watch``
                async with self._scanning:
                    await self._update(plugin.name, plugin.path)
            if proof := plugin.proving:
                await asyncio.wait((proof,))

    @property
    def settling(self) -> bool:
        """True while a plugin is proven, or its libraries are installed."""
        return any(plugin.proving or plugin.installs for plugin in self._plugins.values())

    def infos(self) -> tuple[EnvironmentInfo, ...]:
        served = [plugin for _, plugin in sorted(self._plugins.items()) if not plugin.removed]
        hidden = {info.name: info for info in self._hidden.values()}
        return (*(info for plugin in served for info in plugin.infos()), *hidden.values())

    def standstills(self, plugin: str, version: str) -> list[Standstill]:
        known = self._plugins.get(plugin)
        serving = known.serving(version) if known is not None else None
        return serving.health.standstills() if serving is not None else []

    def processes(self) -> list[tuple[str, int]]:
        return [(name, pid) for name, plugin in sorted(self._plugins.items()) for pid in plugin.processes()]

    def known(self, name: str) -> bool:
        """True if ``resolve`` finds it; without a look at all environments, since called for every group."""
        if self._named(name) is not None:
            return True
        with suppress(EnvironmentMissing):
            self.resolve(name)
            return True
        return False

    def resolve(self, name: str) -> EnvironmentInfo:
        """Raises ``EnvironmentMissing``. A plugin that never served is found under any of its names."""
        return find(name, self.infos())

    def full_name(self, name: str, version: str | None) -> str:
        with suppress(EnvironmentMissing):
            if version is not None:
                return f"{self._owner(version).name}/{name.rpartition('/')[2]}"
        return name

    def validate(self, name: str, config: dict[str, Any], version: str | None = None) -> dict[str, Any]:
        """``config`` typed and with defaults.

        Raises ``ConfigError``, or ``EnvironmentFailure`` if no version serves or it rests. Without a process nothing is
        checked.
        """
        environment = name.rpartition("/")[2]
        if version is None:
            info = self.resolve(name)
            plugin, _, environment = info.name.rpartition("/")
            if not info.version:
                name = info.name.partition("/")[0]
                if info.failure is not None:
                    raise unserved(name, info.failure)
                raise EnvironmentFailure(f"{name} is being loaded.")
            serving = self._plugins[plugin].serving()
        else:
            owner = self._owner(version)
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
        """Hold the newest good version, or ``version``, for a group.

        Raises ``ConfigError``. ``data`` replaces its own rows (``Source.record``). See ``Lease.rest``.
        """
        environment, by_version = name.rpartition("/")[2], version is not None
        if version is not None:  # it may have what the newest has lost, and its plugin may have gone
            plugin = self._owner(version)
        else:
            plugin = self._named(name) or self._plugins[self.resolve(name).name.partition("/")[0]]
        serving = await plugin.acquire(environment, version)
        full, described = f"{plugin.name}/{environment}", serving.environments[environment]
        lease = Lease(full, described, serving, by_version=by_version)
        try:
            lease.data = await _given(serving, described, data)
            if config is not None:
                lease.config = _completed(serving, environment, config)
        except BaseException:
            lease.release()
            raise
        return lease

    async def play(self, lease: Lease, spec: EpisodeSpec, answer: Answer, counts: bool = False) -> EpisodeOutcome:
        """Run one episode; plugin errors are in the outcome, those of ``answer`` are raised.

        ``counts``: a policy answers; an environment that only fails rests. Checks do not count.
        """
        if lease.released:
            raise ValueError(f"the lease of {lease.environment} was released")
        spec = spec if lease.data is None else replace(spec, data=lease.data)
        outcome = await lease.serving.play(lease.declared.name, spec, answer, counts)
        if counts:
            self.outcomes.add(lease.environment, lease.environment_version, outcome)
        return outcome

    async def room(self, lease: Lease) -> None:
        await lease.serving.room()

    async def rank(
        self, lease: Lease, members: Sequence[EpisodeOutcome], counts: bool = False
    ) -> Ranking | EpisodeOutcome:
        """An outcome has the failure. ``counts``: if the ranking fails, the episodes count as failed."""
        if lease.released:
            raise ValueError(f"the lease of {lease.environment} was released")
        verdict = await lease.serving.rank(lease.declared.name, members)
        if counts and isinstance(verdict, EpisodeOutcome):
            self.outcomes.overturn(lease.environment, lease.environment_version, members, verdict)
        return verdict

    async def facts(self, lease: Lease) -> DataFacts:
        return await lease.serving.facts(lease.declared.name, lease.data)

    async def look(self, lease: Lease, spec: EpisodeSpec, opens: Opens | None = None) -> Ask | EpisodeOutcome:
        return await first_ask(lambda spec, answer: self.play(lease, spec, answer), spec, opens)

    async def peek(self, lease: Lease, spec: EpisodeSpec, opens: Opens | None = None) -> Ask:
        reached = await self.look(lease, spec, opens)
        if isinstance(reached, Ask):
            return reached
        reason = reached.failure.message if reached.failure is not None else reached.status
        raise EnvironmentFailure(f"{lease.environment} ended before its first question: {reason}.")

    def _is_polled(self, why: str) -> None:
        self._on_event(
            EnvironmentEvent("polled", "all", "", Failure(f"because the system does not watch folders: {why}"))
        )

    def _named(self, name: str) -> Plugin | None:
        plugin, _, environment = name.rpartition("/")
        found = self._plugins.get(plugin)
        return found if found is not None and not found.removed and environment in found.environments else None

    def _owner(self, version: str) -> Plugin:
        for plugin in self._plugins.values():
            if plugin.serving(version) is not None:
                return plugin
        kept = self._snapshots.find(version)
        if kept is None:
            raise EnvironmentMissing(f"There is no version {version!r} of this environment any more.")
        if kept.plugin not in self._plugins:
            self._plugins[kept.plugin] = self._plugin(kept.plugin, self._folders[-1] / kept.path.name, removed=True)
        return self._plugins[kept.plugin]

    async def _watch(self) -> None:
        async with aclosing(hints(self._folders, self._is_polled)) as changes:
            async for _ in changes:
                with suppress(OSError, RuntimeError):  # no files or threads left: the next hint tries again
                    await self.scan()

    async def _update(self, name: str, path: Path) -> asyncio.Task[None] | None:
        plugin = self._plugins.get(name)
        if plugin is None:
            plugin = self._plugins[name] = self._plugin(name, path)
        try:
            seen = await asyncio.to_thread(stamp, path)
            if plugin.path == path and plugin.seen == seen and not plugin.removed:
                return None
            source = await asyncio.to_thread(read_source, path)
            plugin.path = path
            plugin.seen = () if fresh(seen) else seen
            return plugin.update(source)
        except FileNotFoundError:  # it was removed meanwhile; the next scan finds that
            return None
        except (OSError, SourceError) as error:
            plugin.path, plugin.seen = path, ()  # once repaired, it may have the same stamp as when it was last read
            plugin.reject(Failure(shown(str(error)), shown(path.name)))
            return None

    def _plugin(self, name: str, path: Path, removed: bool = False) -> Plugin:
        def earlier(version: str) -> Sequence[Standstill]:
            return self._earlier.pop((name, version), ())  # once: a version that is started again begins again

        return Plugin(name, path, self._scratch, self._interpreters, self._tell, self._budget, removed, earlier)

    def _show_hidden(self, found: Found, served: Mapping[str, Path]) -> None:
        before, self._hidden = self._hidden, {}
        for path, name in found.hidden.items():
            if name not in served:
                continue
            other = shown(str(served[name]))
            failure = Failure(f"{shown(str(path))} is not served: {other} has its name; rename one of them")
            label = f"{name} ({shown(path.name)}, hidden)"
            self._hidden[path] = EnvironmentInfo(label, "", "hidden", failure=failure, path=shown(str(path)))
            if self._hidden[path] != before.get(path):
                self._tell(EnvironmentEvent("hidden", name, "", failure))

    async def _tidy(self) -> None:
        if self._untidy < TIDY_EVERY or (needed := self._needed()) is None:
            return
        self._untidy = 0
        for plugin in self._plugins.values():
            plugin.forget()
        wanted = set(needed).union(*(plugin.versions() for plugin in self._plugins.values()))
        await asyncio.to_thread(self._snapshots.tidy, wanted)

    def _tell(self, event: EnvironmentEvent) -> None:
        self._untidy += event.kind == "loaded"
        self._on_event(event)


async def _given(
    serving: ServedVersion, described: Described, data: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
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
    try:
        return complete(serving.environments[environment].parameters, config, environment)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def find(name: str, infos: Sequence[EnvironmentInfo]) -> EnvironmentInfo:
    """The environment that a name stands for.

    Raises ``EnvironmentMissing`` with the existing and the nearest names.
    """
    matches = environments_named(name, infos)
    if len(matches) == 1:
        return matches[0]
    if matches := matches or [info for info in infos if info.name.partition("/")[0] == name]:
        names = " or ".join(info.name for info in matches)
        raise EnvironmentMissing(f"The environment {name!r} could be {names}.", "Write its full name.")
    raise EnvironmentMissing(f"There is no environment {name!r}.", _advice(name, infos))


def _advice(name: str, infos: Sequence[EnvironmentInfo]) -> str:
    served = sorted(info.name for info in infos if info.version)
    if not served:
        return "No environment is served yet."
    by_short = {full.rpartition("/")[2]: full for full in served}
    nearest = get_close_matches(name, [*served, *by_short], n=1, cutoff=0.5)
    guess = f"Did you mean {by_short.get(nearest[0], nearest[0])!r}? " if nearest else ""
    return f"{guess}There are: {', '.join(served)}."


async def ranked(
    environments: EnvironmentService, lease: Lease, outcomes: Sequence[EpisodeOutcome], counts: bool = False
) -> list[EpisodeOutcome]:
    """Outcomes with the ranking's rewards; if it fails, all rewarded samples fail, without a 0."""
    places = [place for place, outcome in enumerate(outcomes) if outcome.status == "ok"]
    judged = list(outcomes)
    if len(places) < FEWEST:
        return judged
    verdict = await environments.rank(lease, [outcomes[place] for place in places], counts)
    for number, place in enumerate(places):
        if isinstance(verdict, Ranking):
            own_rewards = outcomes[place].rewards
            parts = {OWN if len(own_rewards) == 1 else f"{agent}.{OWN}": own for agent, own in own_rewards.items()}
            parts = outcomes[place].parts | parts
            judged[place] = replace(outcomes[place], rewards=verdict.rewards[number], parts=parts)
        else:
            judged[place] = replace(outcomes[place], status=verdict.status, rewards={}, failure=verdict.failure)
    return judged


LOOK = 0.1
_PATH_STARTS = (".", "~", "/")


@dataclass(frozen=True)
class Meant:
    """What a name can mean, before any plugin is loaded."""

    folders: tuple[Path, ...]
    plugins: frozenset[str]
    """The named one, else all."""
    plugin: str
    environment: str
    """With the plugin instead of a path; without an environment, only the plugin."""


def meant(name: str, folders: Sequence[Path]) -> Meant:
    """Read a name ("games/guess") or a path ("./games.py", "games.py/guess").

    Plugins' names go first. Raises ``EnvironmentMissing``.
    """
    if _is_path(name):
        return _at(name)
    plugins, plugin = frozenset(discover(folders).served), name.partition("/")[0]
    if plugin not in plugins:
        return Meant(tuple(folders), plugins, "", name)
    return Meant(tuple(folders), frozenset({plugin}), plugin, name)


@asynccontextmanager
async def serve_alone(
    name: str, folders: Sequence[Path], scratch: Path, interpreters: Interpreters | None = None
) -> AsyncIterator[tuple[EnvironmentService, EnvironmentInfo]]:
    """Serve the environment ``name`` (see ``meant``) until the block ends.

    Raises ``EnvironmentMissing``. A plugin that does not load is found, but ``bind`` raises.
    """
    wish = meant(name, folders)
    async with served(wish.folders, wish.plugins, scratch, interpreters) as service:
        yield service, chosen(wish, service.infos())


@asynccontextmanager
async def served(
    folders: Sequence[Path], plugins: frozenset[str], scratch: Path, interpreters: Interpreters | None = None
) -> AsyncIterator[EnvironmentService]:
    """Serve these plugins until the block ends; see ``settled``."""
    service = EnvironmentService(folders, scratch, only=plugins, interpreters=interpreters)
    try:
        await settled(service)
        yield service
    finally:
        await service.stop()


async def found_alone(
    names: Sequence[str], folders: Sequence[Path], scratch: Path, interpreters: Interpreters | None = None
) -> tuple[EnvironmentInfo, ...]:
    """All environments of the plugins that the names may mean, broken ones included."""
    plugins = frozenset[str]().union(*(meant(name, folders).plugins for name in names if not _is_path(name)))
    async with served(folders, plugins, scratch, interpreters) as service:
        return service.infos()


async def settled(service: EnvironmentService) -> None:
    """Read the files, and wait until every changed plugin serves, has failed, or waits for a person."""
    if proofs := await service.scan():
        await asyncio.wait(proofs)
    while service.settling:
        await asyncio.sleep(LOOK)


def chosen(wish: Meant, infos: Collection[EnvironmentInfo]) -> EnvironmentInfo:
    """The meant environment; a plugin's only one needs no name. Raises ``EnvironmentMissing``."""
    own = [info for info in infos if info.name.partition("/")[0] == wish.plugin]
    if wish.environment == wish.plugin and len(own) == 1:
        return own[0]
    return find(wish.environment, own or list(infos))


def _is_path(name: str) -> bool:
    return name.startswith(_PATH_STARTS) or name.endswith((*SUFFIXES, "/")) or Path(name).parent.suffix in SUFFIXES


def _at(name: str) -> Meant:
    path, environment = Path(os.path.expanduser(name)).absolute(), ""
    if not path.exists() and path.parent.suffix in SUFFIXES:
        path, environment = path.parent, path.name
    if not path.exists():
        leads = f"{path} is a link that leads nowhere." if path.is_symlink() else f"There is no file or folder {path}."
        raise EnvironmentMissing(leads)
    plugin = next((name for name, entry in plugin_paths(path.parent).items() if entry == path), "")
    if not plugin:
        raise EnvironmentMissing(
            "is no environment plugin.",
            "That is a file NAME.py or NAME.toml, or a folder with an __init__.py or an openenv.yaml; its name begins"
            " with neither . nor _.",
            where=str(path),
        )
    return Meant((path.parent,), frozenset({plugin}), plugin, f"{plugin}/{environment}" if environment else plugin)


@dataclass(frozen=True)
class Peek:
    """First prompts, without a model or an engine."""

    info: EnvironmentInfo
    asks: tuple[Ask, ...] = ()
    problem: str = ""


async def first_prompts(
    name: str,
    config: Mapping[str, Any],
    count: int,
    folders: Sequence[Path],
    scratch: Path,
    interpreters: Interpreters | None = None,
    data: Mapping[str, Any] | None = None,
    opening: Callable[[], AbstractContextManager[Opens | None]] = nullcontext,
) -> Peek:
    """Draw ``count`` instances; 0: only describe.

    ``data`` as in ``EnvironmentService.bind``; ``opening`` gives a program its address, without it prompts are empty.
    Raises ``EnvironmentMissing`` and ``ConfigError``.
    """
    async with serve_alone(name, folders, scratch, interpreters) as (service, info):
        asks: list[Ask] = []
        if not count:
            return Peek(info)
        try:
            with await service.bind(info.name, config=config, data=data) as lease:
                for index in range(count):
                    spec = EpisodeSpec("train", index, seed=0, member=0, config=lease.config, timeout=PATIENCE)
                    with opening() as opens:
                        asks.append(await service.peek(lease, spec, opens))
        except EnvironmentFailure as failure:
            return Peek(info, tuple(asks), str(failure))
        return Peek(info, tuple(asks))
