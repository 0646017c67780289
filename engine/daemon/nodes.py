"""Looks at cluster nodes for screens, log, moves.

Drained nodes keep workers until no task is within a step.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import MarlaasError, StoreError
from ..machine.cluster.node import Node, clock_warning, meant, of_each_name, versions_in_words, why_not_drain
from ..store.queries.machine import NodeRow
from ..store.store import Store
from ..store.submissions import NODE_COMMANDS
from ..store.tasks import Command

if TYPE_CHECKING:
    from ..machine.supervisor import WorkerSupervisor

INTERVAL = 5.0
POLL = 0.2


class NodeMonitor:
    """Looks at the nodes regularly."""

    def __init__(
        self,
        store: Store,
        nodes: Callable[[], Awaitable[Sequence[Node]]],
        supervisor: WorkerSupervisor,
        settle: Callable[[Callable[[], None]], None],
        log: Callable[[str, str, str], None],
    ) -> None:
        """``nodes`` raises ``MarlaasError`` without a bridge. ``settle`` calls back when no task is within a step."""
        self._store = store
        self._nodes = nodes
        self._supervisor = supervisor
        self._settle = settle
        self._log = log
        self._seen = -1
        self._last: tuple[NodeRow, ...] = ()
        self._works: frozenset[str] | None = None
        self._told: set[str] = set()
        self._moving: asyncio.Task[None] | None = None
        supervisor.draining_nodes(store.telemetry.drained())

    async def run(self) -> None:
        looked = -INTERVAL
        while True:
            with contextlib.suppress(StoreError):
                commands = self._commands()
                if commands or time.monotonic() - looked >= INTERVAL:
                    await self.look(commands)
                    looked = time.monotonic()
            await asyncio.sleep(POLL)

    def _commands(self) -> list[Command]:
        seen = self._store.changed()
        if seen == self._seen:
            return []
        found = [command for command in self._store.tasks.new_commands() if command.kind in NODE_COMMANDS]
        self._seen = -1 if found else seen
        return found

    async def look(self, commands: Sequence[Command] = ()) -> None:
        nodes: tuple[Node, ...] | None = None
        try:
            nodes = of_each_name(await self._nodes())
        except MarlaasError as error:
            self._tell(f"The cluster does not answer: {error.message}", "warning")
        outcomes = {command.id: self._hear(command, nodes or self._last) for command in commands}
        drained = self._store.telemetry.drained()
        self._supervisor.draining_nodes(drained)
        if nodes is None:
            rows = tuple(replace(row, alive=row.here) for row in self._last)
        else:
            rows = rows_of(nodes, drained, self._supervisor.nodes_of_workers(), time.time())
        for sentence, level in changes(self._last, rows):
            self._log("node", sentence, level)
        for row in rows:
            if row.clock is not None and (warning := clock_warning(row.name, row.clock)):
                self._tell(warning.partition(":")[0] + ".", "warning")
        self._last = rows
        self._store.telemetry.nodes(rows)
        self._follow(rows)
        for command, outcome in outcomes.items():
            self._store.tasks.finish_command(command, outcome)

    def _hear(self, command: Command, nodes: Sequence[Node | NodeRow]) -> str:
        word, drained = str(command.arguments.get("node")), self._store.telemetry.drained()
        name, unknown = meant(word, nodes)
        if command.kind == "undrain_node":
            if not name and word not in drained:
                return unknown
            self._store.telemetry.undrain(name or word)
            return ""
        if unknown:
            return unknown
        if refused := why_not_drain(name, nodes, drained):
            return refused
        self._store.telemetry.drain(name)
        return ""

    def _follow(self, rows: Sequence[NodeRow]) -> None:
        before, self._works = self._works, frozenset(row.name for row in rows if row.state == "ready")
        if before is None or before == self._works:
            return
        if self._moving is not None:
            self._moving.cancel()
        self._moving = asyncio.ensure_future(self._plan())

    async def _plan(self) -> None:
        try:
            placement_plan = await self._supervisor.planned_anew()
        except MarlaasError as error:
            self._tell(f"The workers cannot go elsewhere: {error}", "error")
            return
        if placement_plan is not None:
            self._log("placement", "Other nodes work than before: the workers move between two steps.", "info")
            self._settle(lambda: self._supervisor.move(placement_plan))

    def _tell(self, sentence: str, level: str) -> None:
        if sentence not in self._told:
            self._told.add(sentence)
            self._log("node", sentence, level)


def rows_of(
    nodes: Sequence[Node], drained: frozenset[str], workers: Mapping[str, str], now: float
) -> tuple[NodeRow, ...]:
    """``workers`` maps names to nodes."""
    return tuple(
        NodeRow(
            id=node.id,
            name=node.name,
            address=node.address,
            alive=node.alive,
            here=node.here,
            draining=node.name in drained,
            refused=node.refused,
            cores=node.facts.usable.machine.cpu.count,
            memory=node.facts.free_bytes,
            cards=tuple(f"{gpu.label} {gpu.name}" for gpu in node.facts.usable.machine.gpus),
            left_out=node.facts.usable.reasons,
            clock=node.clock,
            versions=versions_in_words(node.facts.versions),
            workers=tuple(name for name, place in workers.items() if place == ("" if node.here else node.id)),
            updated=now,
        )
        for node in nodes
    )


def changes(before: Sequence[NodeRow], rows: Sequence[NodeRow]) -> list[tuple[str, str]]:
    """Sentences and levels."""
    known = {row.id: row for row in before}
    found: list[tuple[str, str]] = []
    for row in rows:
        was, node = known.get(row.id), f"Node {row.name}"
        here, word = was is not None and was.alive, "is drained" if row.draining else "may work again"
        cases = (
            (was is None and row.alive, f"{node} ({row.address}) is in the cluster.", "info"),
            (was is not None and row.alive and not here, f"{node} ({row.address}) is back.", "info"),
            (here and not row.alive, f"{node} is gone.", "warning"),
            (
                row.alive and row.refused and (was is None or was.refused != row.refused),
                f"{node} is not used: {row.refused}",
                "warning",
            ),
            (row.alive and was is not None and was.draining != row.draining, f"{node} {word}.", "info"),
        )
        found += [(sentence, level) for holds, sentence, level in cases if holds]
    gone = [row for row in before if row.alive and row.id not in {other.id for other in rows}]
    return found + [(f"Node {row.name} is gone.", "warning") for row in gone]
