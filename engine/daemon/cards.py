"""Every few seconds: who holds how much of which card, for the screen; what became of cards, for the log; and work that
is placed anew where cards were lost, or are to be had.

A child of a moment asks the driver (``devices.inventory``), because a driver may hang. On machines without one nothing
is ever started. Which cards are used is the placement's business, and when it is asked again ``devices.vigil``'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Collection
from typing import Protocol

from ..devices import (
    CardWatch,
    Inventory,
    Ours,
    ResourceSettings,
    UsableResources,
    changes,
    claimed,
    has_driver,
    own_account,
    probe,
    usable_resources,
)
from ..errors import MarlaasError, StoreError
from ..store import DeviceRow, Store

INTERVAL = 5.0
"""Seconds between two looks. One costs about a tenth of a second of a core."""


class Placed(Protocol):
    """The supervisor, as far as this is about it."""

    @property
    def ready(self) -> bool:
        """Whether the workers live."""

    @property
    def ours(self) -> Ours:
        """What this engine holds."""

    async def place_anew(self) -> bool:
        """Go over to other cards if a plan of this moment takes others. Raises ``MarlaasError`` where there is none."""


class CardMonitor:
    """Looks again and again."""

    def __init__(
        self, store: Store, resources: ResourceSettings, supervisor: Placed, log: Callable[[str, str, str], None]
    ) -> None:
        self._store = store
        self._resources = resources
        self._supervisor = supervisor
        self._log = log
        self._account = own_account()
        self._last: Inventory | None = None
        self._labels: dict[str, str] = {}
        """Of all cards that were ever seen."""
        self._watch = CardWatch()
        self._failure = ""
        """Why work could not be placed anew, as last said."""
        store.devices.replace(())

    async def run(self) -> None:
        """Look until cancelled; what a full disk spoils is written at the next look."""
        if not has_driver():
            await asyncio.Event().wait()
        while True:
            with contextlib.suppress(StoreError):
                await self._look()
            await asyncio.sleep(INTERVAL)

    async def _look(self) -> None:
        ours = self._supervisor.ours
        found = claimed(await asyncio.to_thread(probe, tuple(ours.processes)), ours)
        usable = usable_resources(found, self._resources, os.environ, self._account)
        first = self._last is None
        self._tell(found, usable)
        self._store.devices.replace(rows_of(found, usable, ours.cards, time.time()))
        if not found.machine.gpus and found.reason:
            return  # a driver that does not answer says nothing about the cards; workers whose card failed die
        cards = {gpu.uuid for gpu in usable.machine.gpus}
        if first or not self._supervisor.ready:  # workers that start are placed by what is there then
            self._watch = self._watch.planned(cards)
        else:
            await self._keep(cards, ours.cards)

    def _tell(self, found: Inventory, usable: UsableResources) -> None:
        if self._last is None:
            for sentence in (*found.notes, *usable.notes, *(out.reason for out in usable.left_out)):
                self._log("device", sentence, "info")
        else:
            for sentence in changes(self._last, found, self._account):
                self._log("device", sentence, "warning")
        self._last = found
        self._labels |= {gpu.uuid: gpu.label for gpu in found.machine.gpus}

    async def _keep(self, usable: Collection[str], used: Collection[str]) -> None:
        """Have work placed anew where what may be used is not what the workers were placed for."""
        self._watch = self._watch.after(usable, used)
        if not (self._watch.leaves or self._watch.takes):
            return
        self._watch = self._watch.planned(usable)
        lost = " and ".join(sorted(self._labels.get(uuid, uuid) for uuid in set(used) - set(usable)))
        try:
            if await self._supervisor.place_anew():
                why = f"{lost} may not be used any more" if lost else "further cards may be used"
                self._log("placement", f"The workers go elsewhere: {why}.", "warning" if lost else "info")
            self._failure = ""
        except MarlaasError as error:
            if lost and self._failure != (failure := f"The workers cannot leave {lost}: {error}"):
                self._failure = failure
                self._log("placement", failure, "error")


def rows_of(found: Inventory, usable: UsableResources, used: Collection[str], now: float) -> list[DeviceRow]:
    """As the store keeps them; a card in use that others have come to is not left alone."""
    return [
        DeviceRow(
            gpu.uuid,
            gpu.label,
            gpu.name,
            gpu.memory,
            gpu.free,
            gpu.utilisation,
            "" if gpu.uuid in used else usable.reason(gpu.uuid),
            gpu.holders,
            now,
        )
        for gpu in found.machine.gpus
    ]
