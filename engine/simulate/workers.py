"""The workers of a simulation in place of processes: started together, called as such, and dead with their node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import count
from typing import Any

from ..errors import WorkerDied
from ..fleet import WorkerSpec
from ..racing import until_first
from .device import Device

NO_PROCESS = 1 << 22
"""First id for simulated workers: more than Linux gives to processes."""

Make = Callable[[str], Device]
"""Makes the device of the worker of that name. Raises ``WorkerDied`` if its node is away."""


class SimulatedHandle:
    """The used part of ``workers.WorkerHandle``."""

    def __init__(self, name: str, pid: int, device: Device) -> None:
        self.name = name
        self.pid = pid
        self.device = device
        self.node = ""
        self.died = asyncio.Event()

    def proxy(self, protocol: Any, posted: Collection[str] = (), part: str = "") -> Any:
        return self.device

    def death(self) -> WorkerDied:
        return self.device.death()

    def die(self) -> None:
        self.device.die()
        self.died.set()


class SimulatedWorkers:
    """The used part of ``WorkerProcesses``."""

    def __init__(self, make: Make, start: float) -> None:
        self._make = make
        self._start = start
        self._pids = count(NO_PROCESS)
        self.handles: dict[str, SimulatedHandle] = {}
        self.cards: frozenset[str] = frozenset()
        self.starts = 0
        self.busy: dict[str, float] = {}

    async def start(self, specs: Sequence[WorkerSpec], cards: Collection[str]) -> None:
        self.starts += 1
        await asyncio.sleep(self._start)
        for spec in specs:
            self._begin(spec.name)

    async def start_again(self, spec: WorkerSpec) -> None:
        await asyncio.sleep(self._start)
        self._begin(spec.name)

    def _begin(self, name: str) -> None:
        self.handles[name] = SimulatedHandle(name, next(self._pids), self._make(name))

    def forget(self, name: str) -> None:
        self.handles.pop(name).die()

    async def until_death(self, *others: asyncio.Event) -> Mapping[str, WorkerDied]:
        ends = [*others, *(handle.died for handle in self.handles.values())]
        await until_first(*(end.wait() for end in ends))
        return {name: handle.death() for name, handle in self.handles.items() if handle.died.is_set()}

    async def stop(self) -> None:
        handles, self.handles = list(self.handles.values()), {}
        for handle in handles:
            handle.die()

    def lose(self, node: str) -> None:
        for handle in self.handles.values():
            if handle.device.node == node:
                handle.die()
