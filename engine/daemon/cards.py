"""Every few seconds: who holds how much of which card, for the screen; what became of cards, for the log.

A child of a moment asks the driver (``devices.inventory``), because a driver may hang. On machines without one nothing
is ever started. Decides nothing: which cards are used is the placement's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Collection

from ..config import ResourceSettings
from ..devices.changes import changes
from ..devices.guest import Guest, as_guest
from ..devices.holders import own_account
from ..devices.inventory import probe
from ..devices.machine import Inventory
from ..devices.nvml import has_driver
from ..errors import StoreError
from ..store.device_rows import DeviceRow
from ..store.store import Store

INTERVAL = 5.0
"""Seconds between two looks. One costs about a tenth of a second of a core."""


class CardWatch:
    """Looks again and again."""

    def __init__(
        self,
        store: Store,
        resources: ResourceSettings,
        processes: Callable[[], Collection[int]],
        used: Callable[[], Collection[str]],
        log: Callable[[str, str, str], None],
    ) -> None:
        """``processes`` are the ids of this engine's own, ``used`` the ids of the cards that they were given."""
        self._store = store
        self._resources = resources
        self._processes = processes
        self._used = used
        self._log = log
        self._account = own_account()
        self._last: Inventory | None = None
        store.devices.replace(())

    async def run(self) -> None:
        """Look until cancelled; what a full disk spoils is written at the next look."""
        if not has_driver():
            await asyncio.Event().wait()
        while True:
            with contextlib.suppress(StoreError):
                self._take(await asyncio.to_thread(probe, tuple(self._processes())))
            await asyncio.sleep(INTERVAL)

    def _take(self, found: Inventory) -> None:
        guest = as_guest(found, self._resources, os.environ, self._account)
        if self._last is None:
            for sentence in (*found.notes, *guest.notes, *(out.reason for out in guest.left_out)):
                self._log("device", sentence, "info")
        else:
            for sentence in changes(self._last, found, self._account, self._used()):
                self._log("device", sentence, "warning")
        self._last = found
        self._store.devices.replace(rows_of(found, guest, self._used(), time.time()))


def rows_of(found: Inventory, guest: Guest, used: Collection[str], now: float) -> list[DeviceRow]:
    """As the store keeps them; a card in use that others have come to is not left alone."""
    return [
        DeviceRow(
            gpu.uuid,
            gpu.label,
            gpu.name,
            gpu.memory,
            gpu.free,
            gpu.utilisation,
            "" if gpu.uuid in used else guest.reason(gpu.uuid),
            gpu.holders,
            now,
        )
        for gpu in found.machine.gpus
    ]
