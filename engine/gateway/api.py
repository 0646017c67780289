"""The API of an engine.

Commands open or close it, else the settings; commands outlive the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from ..errors import MarlaasError, StoreError
from ..home.paths import Home
from ..home.settings import ApiSettings
from ..racing import until_first
from ..store.store import Store
from ..store.submissions import API_SWITCHES
from ..store.tasks import Command
from ..wire import Answerer, Endpoints
from .keys import Identity
from .limits import Limits
from .link import Desk, Figures, Log
from .processes import PATIENCE, Gateways

MEGABYTE = 1 << 20


POLL = 0.2


def open_api(store: Store, settings: ApiSettings, home: Home, log: Log) -> Api:
    """The API; it opens while ``run`` runs."""
    limits = Limits(
        body_bytes=settings.body_mb * MEGABYTE,
        seconds=settings.seconds,
        connections=settings.connections,
        log_prompts=settings.log_prompts,
        log=str(home.logs / "api.log"),
    )
    desk = Desk(store.api.key, store.api.add_use, log)
    return Api(store, settings, Gateways(desk, limits, home.logs / "gateway.log"))


class Api:
    """Always answers programs, clients while open."""

    def __init__(self, store: Store, settings: ApiSettings, gateways: Gateways) -> None:
        self._store = store
        self._settings = settings
        self._gateways = gateways
        self._desk = gateways.desk
        self._seen = -1
        self._begun = False
        self.endpoints: Endpoints = gateways

    def serve(self, serving: Callable[[Identity], Answerer], figures: Figures) -> None:
        self._desk.serving, self._desk.figures = serving, figures

    async def run(self) -> None:
        await until_first(self._run(), self._desk.run())

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(StoreError):  # a full disk, or a lock: it is tried again
                await self._look()
            await asyncio.sleep(POLL)

    async def stop(self) -> None:
        self._desk.open = False
        with contextlib.suppress(StoreError):
            if self._store.api.state().open:
                self._store.api.tell(False)
        await self._gateways.stop()
        with contextlib.suppress(StoreError):
            self._desk.flush()

    async def _look(self) -> None:
        seen = self._store.changed()
        if seen == self._seen:
            return
        self._seen = -1  # until all is carried out
        commands = [command for command in self._store.tasks.new_commands() if command.kind in API_SWITCHES]
        if not self._begun:
            await self._begin(bool(commands))
        for command in commands:
            self._store.tasks.finish_command(command.id, await self._obey(command))
        self._seen = seen

    async def _begin(self, commanded: bool) -> None:
        state = self._store.api.state()
        wanted = self._settings.enabled if state.switched is None else state.switched
        if wanted and not commanded:
            if refused := await self._open(state.port, PATIENCE):
                self._desk.log("api", refused, "warning")
        elif state.open:  # the engine before was killed
            self._store.api.tell(False)
        self._begun = True

    async def _obey(self, command: Command) -> str:
        if command.kind == "api_stop":
            self._store.api.switch(False)
            was_open, self._desk.open = self._desk.open, False
            self._store.api.tell(False)
            await self._gateways.stop("clients")
            if was_open:
                self._desk.log("api", "The API is closed to clients.", "info")
            return ""
        port = command.arguments.get("port")
        port = port if isinstance(port, int) and 0 <= port <= 65535 else None
        if port is None and self._desk.open:
            port = self._store.api.state().port  # it keeps its port
        refused = await self._open(port)
        if not refused:
            self._store.api.switch(True, port)
        return refused

    async def _open(self, port: int | None, patience: float = 0.0) -> str:
        listen, store, why = self._settings.listen, self._store.api, ""
        try:
            if self._settings.local or store.any_key():
                port = self._settings.port if port is None else port
                gateway = await self._gateways.start("clients", listen, port, patience)
            else:
                why = (
                    f"The API is to listen at {listen}, where other machines reach it, and there is no key yet."
                    " `marlaas api key new TENANT` makes one."
                )
        except MarlaasError as error:
            why = str(error)
        if why:
            if not self._desk.open:
                store.tell(False, note=why)
        elif not self._desk.open or store.state().url != gateway.url:
            store.tell(True, gateway.url)
            self._desk.open = True
            self._desk.log("api", f"The API is open to clients at {gateway.url}.", "info")
        return why
