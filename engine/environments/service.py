"""The environments of one engine: every plugin in the folders, each in processes of its own, reloaded as files change.

Flows in: folders to serve, and episodes to play with someone who answers their asks. Flows out: outcomes, and events
for the screen. No code of a plugin ever runs in this process.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from marlaas.plugins.parameters import complete

from ..errors import ConfigError, EnvironmentFailure
from ..types import Failure
from .lease import Lease
from .names import find
from .plugin import Plugin
from .probe import first_ask
from .protocol import Answer, Ask, EnvironmentEvent, EnvironmentInfo, EpisodeOutcome, EpisodeSpec
from .source import SourceError, fresh, plugin_paths, read_source, stamp
from .watch import hints

FIRST_PROOFS = 5.0
"""Seconds that the start waits for plugins to prove themselves; slower ones are served when they have."""


class EnvironmentService:
    """Start it once; then ``bind`` a version for a group, ``play`` its episodes, and release the lease."""

    def __init__(
        self,
        folders: Sequence[Path],
        scratch: Path,
        on_event: Callable[[EnvironmentEvent], None] | None = None,
    ) -> None:
        """``folders``: where plugins lie; a plugin in a later folder hides one of the same name in an earlier one."""
        self._folders = tuple(folders)
        self._scratch = scratch
        self._on_event = on_event or (lambda event: None)
        self._plugins: dict[str, Plugin] = {}
        self._watching: asyncio.Task[None] | None = None
        self._scanning = asyncio.Lock()

    async def start(self) -> None:
        """Serve what is there, then keep watching.

        Returns when every plugin has proven itself or failed; one whose import hangs holds up the others only so long.
        """
        for folder in self._folders:
            with contextlib.suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
        self._scratch.mkdir(parents=True, exist_ok=True)
        self._watching = asyncio.get_running_loop().create_task(self._watch())
        await asyncio.sleep(0)  # the watch is set up in its first step: nothing saved from here on is missed
        if proofs := await self.scan():
            await asyncio.wait(proofs, timeout=FIRST_PROOFS)

    async def stop(self) -> None:
        """End the watch and every process; no child outlives this call."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await asyncio.gather(*(plugin.stop() for plugin in self._plugins.values()))

    async def scan(self) -> list[asyncio.Task[None]]:
        """Read the folders now; returns the proofs that are under way because of what changed."""
        async with self._scanning:
            found: dict[str, Path] = {}
            for folder in self._folders:
                found.update(await asyncio.to_thread(plugin_paths, folder))
            for name, plugin in self._plugins.items():
                if name not in found:
                    plugin.remove()
            proofs = [await self._update(name, path) for name, path in found.items()]
            return [proof for proof in proofs if proof is not None]

    def infos(self) -> tuple[EnvironmentInfo, ...]:
        """Every environment, sorted by name."""
        served = [plugin for _, plugin in sorted(self._plugins.items()) if not plugin.removed]
        return tuple(info for plugin in served for info in plugin.infos())

    def processes(self) -> list[tuple[str, int]]:
        """The name of a plugin and the id of a process of its, for every process that plays episodes."""
        return [(plugin.name, pid) for _, plugin in sorted(self._plugins.items()) for pid in plugin.processes()]

    def resolve(self, name: str) -> EnvironmentInfo:
        """What a task means by ``name``; ``EnvironmentMissing`` where there is no such environment.

        A plugin that is there but never served is found under any of its names, in state broken or loading.
        """
        return find(name, self.infos())

    def validate(self, name: str, config: dict[str, Any]) -> dict[str, Any]:
        """``config`` typed and with its defaults; ``ConfigError`` says what is wrong with it."""
        info = self.resolve(name)
        if "/" not in info.name:
            raise EnvironmentFailure(_no_version(info))
        try:
            return complete(info.parameters, config, info.name.rpartition("/")[2])
        except ValueError as error:
            raise ConfigError(str(error)) from None

    async def bind(self, name: str, version: str | None = None) -> Lease:
        """Hold one version for a group: the newest good one, or ``version``, started again where needed."""
        owner, _, environment = name.rpartition("/")
        if version is None or owner not in self._plugins:  # a pinned version may have what the newest has lost
            owner = self.resolve(name).name.partition("/")[0]
        plugin = self._plugins[owner]
        serving = await plugin.acquire(environment, version)
        return Lease(f"{plugin.name}/{environment}", serving.environments[environment], serving)

    async def play(self, lease: Lease, spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
        """Play one episode. What the plugin does wrong is in the outcome; what ``answer`` raises is raised here.

        Cancelling this coroutine cancels the episode in its process.
        """
        if lease.released:
            raise ValueError(f"the lease of {lease.environment} was released")
        return await lease.serving.play(lease.declared.name, spec, answer)

    async def peek(self, lease: Lease, spec: EpisodeSpec) -> Ask:
        """The episode's first ask, without a model; ``EnvironmentFailure`` where it ends before one."""
        reached = await first_ask(lambda spec, answer: self.play(lease, spec, answer), spec)
        if isinstance(reached, Ask):
            return reached
        reason = reached.failure.message if reached.failure is not None else reached.status
        raise EnvironmentFailure(f"{lease.environment} ended before its first question: {reason}.")

    async def _watch(self) -> None:
        async with contextlib.aclosing(hints(self._folders)) as changes:
            async for _ in changes:
                await self.scan()

    async def _update(self, name: str, path: Path) -> asyncio.Task[None] | None:
        plugin = self._plugins.get(name)
        if plugin is None:
            plugin = self._plugins[name] = Plugin(name, path, self._scratch, self._on_event)
        try:
            seen = await asyncio.to_thread(stamp, path)
            if plugin.path == path and plugin.seen == seen and not plugin.removed:
                return None
            source = await asyncio.to_thread(read_source, path)
            plugin.path = path
            plugin.seen = () if fresh(seen) else seen
            return plugin.update(source)
        except FileNotFoundError:  # it went away meanwhile; the next hint will say so
            return None
        except (OSError, SourceError) as error:
            plugin.reject(Failure(str(error), path.name))
            return None


def _no_version(info: EnvironmentInfo) -> str:
    """Why an environment serves nobody, with the place in its author's file."""
    if info.failure is None:
        return f"environment {info.name} is being loaded"
    place = f"{info.failure.file}, line {info.failure.line}: " if info.failure.file else ""
    return f"environment {info.name} has no working version: {place}{info.failure.message}"
