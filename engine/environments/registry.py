"""The plugins in an engine's folders: found, and kept up to date while files change."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from pathlib import Path
from types import MappingProxyType

from ..errors import EnvironmentFailure, EnvironmentMissing
from ..trajectories import Failure
from .dependencies.interpreters import Interpreters
from .files.source import Found, Snapshots, SourceError, discover, fresh, read_source, shown, stamp
from .files.watch import hints
from .health import Standstill
from .nodes.reach import Reach
from .plugin import Plugin, unserved
from .pool import ProcessBudget
from .protocol import EnvironmentEvent, EnvironmentInfo

TIDY_EVERY = 64
"""Snapshots are tidied after so many loaded versions."""


class Registry:
    """Every plugin, whether its files are still there or not."""

    def __init__(
        self,
        folders: Sequence[Path],
        scratch: Path,
        interpreters: Interpreters,
        on_event: Callable[[EnvironmentEvent], None],
        only: Collection[str] | None = None,
        needed: Callable[[], Set[str] | None] = lambda: None,
        earlier: Mapping[tuple[str, str], Sequence[Standstill]] = MappingProxyType({}),
    ) -> None:
        """See ``EnvironmentService``."""
        self.plugins: dict[str, Plugin] = {}
        self.heirs: dict[str, str] = {}
        """For plugins whose files are gone, the plugin with the same content."""
        self._folders = tuple(folders)
        self._scratch = scratch
        self._interpreters = interpreters
        self._snapshots = Snapshots(scratch / "snapshots")
        self._on_event = on_event
        self.budget = ProcessBudget(scoring=interpreters.settings.scoring_workers)
        self.reach = Reach(self.budget.cores, interpreters.settings, self._stays_off)
        self._only = only
        self._needed = needed
        self._earlier = dict(earlier)
        self._untidy = TIDY_EVERY
        self._hidden: dict[Path, EnvironmentInfo] = {}
        self._watching: asyncio.Task[None] | None = None
        self._scanning = asyncio.Lock()

    def _stays_off(self, plugin: str, version: str, sentence: str) -> None:
        self._on_event(EnvironmentEvent("elsewhere", plugin, version, Failure(sentence)))

    def _is_polled(self, why: str) -> None:
        self._on_event(
            EnvironmentEvent("polled", "all", "", Failure(f"because the system does not watch folders: {why}"))
        )

    async def start(self) -> list[asyncio.Task[None]]:
        """Find the plugins, then keep watching; returns the proofs that are under way."""
        for folder in self._folders:
            with contextlib.suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
        self._scratch.mkdir(parents=True, exist_ok=True)
        self._watching = asyncio.get_running_loop().create_task(self._watch())
        await asyncio.sleep(0)  # the watch is set up in its first step: nothing saved from here on is missed
        return await self.scan()

    async def stop(self) -> None:
        """End the watch and every process."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await asyncio.gather(*(plugin.stop() for plugin in self.plugins.values()))

    async def scan(self) -> list[asyncio.Task[None]]:
        """Read the folders at once; returns the proofs that are under way because of what changed."""
        async with self._scanning:
            found = await asyncio.to_thread(discover, self._folders)
            served = {n: path for n, path in found.served.items() if self._only is None or n in self._only}
            plugins = self.plugins.items()
            unseen = {name for name, plugin in plugins if not plugin.removed and plugin.path.parent in found.unread}
            proofs = [await self._update(name, path) for name, path in served.items() if name not in unseen]
            self._remove_all_but(served.keys() | unseen)
            self._show_hidden(found, served)
            await self._tidy()
            return [proof for proof in proofs if proof is not None]

    async def reload(self, name: str) -> None:
        """See ``EnvironmentService.reload``."""
        async with self._scanning:
            plugin = self.plugins.get(name)
            if plugin is None or plugin.removed:
                known = ", ".join(sorted(name for name, plugin in self.plugins.items() if not plugin.removed))
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
        """See ``EnvironmentService.refresh``; ``name`` is the plugin's."""
        plugin = self.plugins.get(name)
        if plugin is None or plugin.removed:
            return
        with contextlib.suppress(OSError, RuntimeError):  # as in ``_watch``
            async with self._scanning:
                await self._update(name, plugin.path)
        if proof := plugin.proving:
            await asyncio.wait((proof,))

    def infos(self) -> tuple[EnvironmentInfo, ...]:
        """Every environment, sorted by name; then the plugins that another one hides."""
        served = [plugin for _, plugin in sorted(self.plugins.items()) if not plugin.removed]
        hidden = {info.name: info for info in self._hidden.values()}
        return (*(info for plugin in served for info in plugin.infos()), *hidden.values())

    def named(self, name: str) -> Plugin | None:
        """The plugin that serves the environment of this full name; None where that takes a look at ``infos``."""
        plugin, _, environment = name.rpartition("/")
        found = self.plugins.get(plugin)
        return found if found is not None and not found.removed and environment in found.environments else None

    def owner(self, version: str) -> Plugin:
        """The plugin of a version, also where its files have gone; ``EnvironmentMissing`` where none is kept."""
        for plugin in self.plugins.values():
            if plugin.serving(version) is not None:
                return plugin
        kept = self._snapshots.find(version)
        if kept is None:
            raise EnvironmentMissing(f"There is no version {version!r} of this environment any more.")
        if kept.plugin not in self.plugins:
            path = self._folders[-1] / kept.path.name
            self.plugins[kept.plugin] = self._plugin(kept.plugin, path, removed=True)
        return self.plugins[kept.plugin]

    async def _watch(self) -> None:
        async with contextlib.aclosing(hints(self._folders, self._is_polled)) as changes:
            async for _ in changes:
                with contextlib.suppress(OSError, RuntimeError):  # no files or threads left: the next hint tries again
                    await self.scan()

    async def _update(self, name: str, path: Path) -> asyncio.Task[None] | None:
        plugin = self.plugins.get(name)
        if plugin is None:
            plugin = self.plugins[name] = self._plugin(name, path)
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
            return self._earlier.pop((name, version), ())  # once: a version that is started anew begins anew

        return Plugin(
            name, path, self._scratch, self._interpreters, self._tell, self.budget, self.reach, removed, earlier
        )

    def _remove_all_but(self, served: Collection[str]) -> None:
        contents = {plugin.content: name for name, plugin in self.plugins.items() if name in served}
        for name, plugin in self.plugins.items():
            if name in served:
                self.heirs.pop(name, None)
            elif not plugin.removed:
                heir = contents.get(plugin.content, "")
                if heir:
                    self.heirs[name] = heir
                plugin.remove(heir)

    def _show_hidden(self, found: Found, served: Mapping[str, Path]) -> None:
        """Report plugins that are not served because another has their name, each once."""
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
        """From time to time, remove snapshots that are not needed."""
        if self._untidy < TIDY_EVERY or (needed := self._needed()) is None:
            return
        self._untidy = 0
        for plugin in self.plugins.values():
            plugin.forget()
        wanted = set(needed).union(*(plugin.versions() for plugin in self.plugins.values()))
        await asyncio.to_thread(self._snapshots.tidy, wanted)

    def _tell(self, event: EnvironmentEvent) -> None:
        self._untidy += event.kind == "loaded"
        self._on_event(event)
