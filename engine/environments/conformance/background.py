"""Checks promoted versions in the background, one environment after the other, unless a newer version comes.

A version is checked once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from pathlib import Path

from ...errors import MarlaasError
from ..protocol import EnvironmentInfo
from ..service import EnvironmentService
from .check import Scope, check_version, unset
from .finding import Finding

SETTLED = 2.0
"""Seconds after a promotion before it is checked: an author saves again and again."""
PROMPTS, SECONDS, REST, CROWD = 32, 30.0, 0.01, 16

Known = Callable[[str, str], bool]
"""Says whether the findings of an environment's version are known."""
Found = Callable[[str, str, list[Finding]], None]
"""Takes the findings of an environment's version."""


class Background:
    """Run it beside the service; tell it of every plugin that changed."""

    def __init__(
        self,
        service: EnvironmentService,
        scope: Scope,
        known: Known,
        found: Found,
        spare: Collection[Path] = (),
        settled: float = SETTLED,
    ) -> None:
        """``spare``: folders whose plugins are not checked."""
        self._service = service
        self._scope = scope
        self._known = known
        self._found = found
        self._spare = tuple(spare)
        self._settled = settled
        self._waiting: dict[str, None] = {}
        self._current = ""
        self._checking: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()

    @property
    def busy(self) -> bool:
        """Whether something is checked, or waits to be."""
        return bool(self._waiting) or self._checking is not None

    def changed(self, plugin: str) -> None:
        """A version was promoted, or the plugin went away: the check of an older one ends here."""
        self._waiting[plugin] = None
        self._woken.set()
        if self._current == plugin and self._checking is not None:
            self._checking.cancel()

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            while self._waiting:
                await asyncio.sleep(self._settled)
                self._current = next(iter(self._waiting))
                del self._waiting[self._current]
                self._checking = asyncio.get_running_loop().create_task(self._check(self._current))
                try:
                    await asyncio.wait((self._checking,))
                finally:
                    self._checking.cancel()
                    await asyncio.gather(self._checking, return_exceptions=True)
                    self._current, self._checking = "", None

    async def _check(self, plugin: str) -> None:
        for info in self._service.infos():
            if info.name.partition("/")[0] == plugin and info.version and not self._spared(info):
                await self._check_one(info)

    async def _check_one(self, info: EnvironmentInfo) -> None:
        if self._known(info.name, info.version):
            return
        if missing := unset(info, {}):
            self._found(info.name, info.version, [Finding("config", "note", missing)])
            return
        try:
            held = await self._service.bind(info.name, info.version, {})
        except MarlaasError:
            return  # it rests, as its state says, but the version may work later
        try:
            with held as lease:
                self._found(info.name, info.version, await check_version(lease, self._scope))
        except MarlaasError as error:  # no fresh process of it can be started
            self._found(info.name, info.version, [Finding("load", "error", error.message)])
        except Exception as error:  # a bug in a check must not end the engine
            text = f"The check itself failed: {type(error).__name__}: {error}."
            self._found(info.name, info.version, [Finding("check", "note", text)])

    def _spared(self, info: EnvironmentInfo) -> bool:
        return any(Path(info.path).is_relative_to(folder) for folder in self._spare)
