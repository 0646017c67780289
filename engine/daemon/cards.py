"""Looks at the cards every few seconds: for the screen, for the log, and to plan again after changes.

A short-lived child asks the driver (``devices.survey``), because a driver may hang.
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
    """The used part of the supervisor."""

    @property
    def ready(self) -> bool:
        """True if the workers are alive."""

    @property
    def ours(self) -> Ours:
        """The processes and cards that this engine holds."""

    async def place_anew(self) -> bool:
        """Change to a new plan if it uses other cards. Raises ``MarlaasError`` if there is none."""


class CardMonitor:
    """Looks at the cards regularly."""

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
        self._watch = CardWatch()
        self._failure = ""
        store.devices.replace(())

    async def run(self) -> None:
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
            return  # a silent driver does not mean lost cards: workers on a failed card die
        cards = {gpu.uuid for gpu in usable.machine.gpus}
        if first or not self._supervisor.ready:
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
    """The cards' rows for the store; a card in use counts as usable even if others use it, too."""
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
