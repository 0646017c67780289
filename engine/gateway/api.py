"""The API of an engine: its gateways, its callers and its switch, put together."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from ..errors import StoreError
from ..home import ApiSettings, Home
from ..racing import until_first
from ..store import Store
from ..wire import Answerer, Endpoints
from .callers import Callers, Tallies
from .keys import Identity
from .limits import Limits, encode
from .link import Desk, Figures, Log
from .processes import Gateways
from .switch import Switch

MEGABYTE = 1 << 20


class Api:
    """Answers programs and clients over HTTP while ``run`` runs."""

    def __init__(self, store: Store, settings: ApiSettings, home: Home, log: Log) -> None:
        self._tallies = Tallies(store.api.add_use)
        self._desk = Desk(Callers(store.api.key), self._tallies, log)
        self._gateways = Gateways(self._desk, limits_of(settings, home), home.logs / "gateway.log")
        self._switch = Switch(store, settings, self._gateways, self._desk)
        self.endpoints: Endpoints = self._gateways
        """Addresses for episodes; they need no ``run``."""

    def serve(self, serving: Callable[[Identity], Answerer]) -> None:
        """From here on, what this makes answers clients."""
        self._desk.callers.serving = serving

    def show(self, figures: Figures) -> None:
        """From here on, these are the engine's figures at ``/metrics``."""
        self._desk.figures = figures

    async def run(self) -> None:
        """Hear people's commands and write down what keys use, until cancelled."""
        await until_first(self._switch.run(), self._tallies.run())

    async def stop(self) -> None:
        """End the gateways and all requests."""
        await self._switch.stop()
        await self._gateways.stop()
        with contextlib.suppress(StoreError):
            self._tallies.flush()


def limits_of(settings: ApiSettings, home: Home) -> str:
    """What the gateway is told of the settings, as JSON."""
    return encode(
        Limits(
            body_bytes=settings.body_mb * MEGABYTE,
            seconds=settings.seconds,
            connections=settings.connections,
            log_prompts=settings.log_prompts,
            log=str(home.logs / "api.log"),
        )
    )
