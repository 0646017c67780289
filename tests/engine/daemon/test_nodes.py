"""The engine's look at its nodes: what is stored, what is told, who is drained, and when workers move."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from marlaas.engine.daemon.nodes import NodeMonitor
from marlaas.engine.devices.machine import Cpu, Gpu, Machine
from marlaas.engine.devices.usable import UsableResources
from marlaas.engine.errors import ClusterUnreachable, ConfigError
from marlaas.engine.home.paths import Home
from marlaas.engine.machine.cluster.node import Node, NodeFacts
from marlaas.engine.machine.plan import PlacementPlan
from marlaas.engine.store.queries.machine import NodeRow, nodes
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.store import Store
from marlaas.engine.store.submissions import command

GPU = Gpu(0, "GPU-0", "H1", "cuda", 10, 10)
PLAN = cast(PlacementPlan, object())
OURS = NodeFacts(usable=UsableResources(Machine(Cpu((0,), 1, 9), (GPU,))), free_bytes=7)
BOBS = NodeFacts(usable=UsableResources(Machine(Cpu((0, 1), 2, 9)), notes=("gpu 0 is left alone.",)))
HERE = Node("a1", "ada", "10.0.0.5", here=True, facts=OURS, clock=0.0)
BOB = Node("b2", "bob", "10.0.0.6", facts=BOBS, clock=0.1)


class World:
    """Nodes, workers and a log, as a test sets them."""

    def __init__(self, root: Path) -> None:
        self.home = Home(root).create()
        self.store = Store(self.home.database, "tiny")
        self.nodes: Sequence[Node] = (HERE, BOB)
        self.error: ClusterUnreachable | None = None
        self.said: list[str] = []
        self.drained: list[frozenset[str]] = []
        self.moves = 0
        self.goes_elsewhere = True
        self.refuses: ConfigError | None = None
        self.settling: list[Callable[[], None]] = []
        self.monitor = NodeMonitor(self.store, self.ask, cast(Any, self), self.settling.append, self.log)

    def log(self, kind: str, message: str, level: str) -> None:
        self.said.append(f"{level}: {message}")

    def ask(self) -> Awaitable[Sequence[Node]]:
        async def answer() -> Sequence[Node]:
            if self.error:
                raise self.error
            return self.nodes

        return answer()

    def draining_nodes(self, names: frozenset[str]) -> None:
        self.drained.append(names)

    def nodes_of_workers(self) -> Mapping[str, str]:
        return {"training": "", "rollout": "b2"}

    async def planned_anew(self) -> PlacementPlan | None:
        if self.refuses:
            raise self.refuses
        return PLAN if self.goes_elsewhere else None

    def move(self, placement_plan: PlacementPlan) -> None:
        assert placement_plan is PLAN
        self.moves += 1

    async def look(self) -> list[str]:
        """Look once, carry out what waits; returns what was said."""
        self.said.clear()
        await self.monitor.look(self.monitor._commands())
        return list(self.said)

    async def between_steps(self) -> None:
        """The plan is made; then no task is within a step."""
        if self.monitor._moving is not None:
            await self.monitor._moving
        for move in self.settling:
            move()
        self.settling.clear()

    def rows(self) -> list[NodeRow]:
        with Reader(self.home.database) as reader:
            return nodes(reader)

    def outcome(self, sent: int) -> str:
        with Reader(self.home.database) as reader:
            return reader.command_outcomes([sent])[sent]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.store.close()


async def test_nodes_are_stored_and_told_of_once(world: World) -> None:
    assert await world.look() == [
        "info: Node ada (10.0.0.5) is in the cluster.",
        "info: Node bob (10.0.0.6) is in the cluster.",
    ]
    ada, bob = world.rows()
    assert (ada.here, ada.cores, ada.memory, ada.cards, ada.workers) == (True, 1, 7, ("gpu 0 H1",), ("training",))
    assert (bob.cores, bob.left_out, bob.workers, bob.clock) == (2, ("gpu 0 is left alone.",), ("rollout",), 0.1)
    assert await world.look() == [] and not world.settling
    for seconds, words in ((-300.0, ["warning: The clock of bob is 5 minutes behind this machine's."]), (-300.2, [])):
        world.nodes = (HERE, replace(BOB, clock=seconds))
        assert await world.look() == words


async def test_a_node_that_joins_or_goes_moves_workers_between_steps(world: World) -> None:
    await world.look()
    world.nodes = (HERE,)
    assert await world.look() == ["warning: Node bob is gone."]
    assert world.moves == 0
    await world.between_steps()
    assert world.moves == 1
    assert world.said[-1] == "info: Other nodes work than before: the workers move between two steps."
    world.nodes = (HERE, replace(BOB, id="b3"))
    assert await world.look() == ["info: Node bob (10.0.0.6) is in the cluster."]
    await world.between_steps()
    assert world.moves == 2
    world.nodes, world.goes_elsewhere = (HERE,), False
    await world.look()
    await world.monitor._moving  # type: ignore[misc]
    assert not world.settling, "no task is held up where nothing moves"


async def test_a_refused_node_says_why_and_is_no_reason_to_move(world: World) -> None:
    world.nodes = (HERE,)
    await world.look()
    world.nodes = (HERE, replace(BOB, refused="torch is older there."))
    said = await world.look()
    assert said[-1] == "warning: Node bob is not used: torch is older there."
    assert not world.settling and await world.look() == []
    assert world.rows()[1].state == "refused"


async def test_a_drain_is_heard_and_outlives_the_engine(world: World) -> None:
    await world.look()
    sent = command(world.home.database, "drain_node", node="bob")
    assert await world.look() == ["info: Node bob is drained."]
    assert world.outcome(sent) == "" and world.drained[-1] == {"bob"} and world.rows()[1].state == "draining"
    await world.between_steps()
    assert world.moves == 1
    later = NodeMonitor(world.store, world.ask, cast(Any, world), world.settling.append, world.log)
    assert world.drained[-1] == {"bob"} and later is not world.monitor
    sent = command(world.home.database, "undrain_node", node="bob")
    assert await world.look() == ["info: Node bob may work again."] and world.outcome(sent) == ""
    assert world.drained[-1] == frozenset()


async def test_what_cannot_be_drained_is_answered(world: World) -> None:
    await world.look()
    sent = [command(world.home.database, "drain_node", node=name) for name in ("eve", "bob", "ada")]
    sent.append(command(world.home.database, "undrain_node", node="eve"))
    await world.look()
    outcomes = [world.outcome(number) for number in sent]
    assert "The cluster has no node 'eve'" in outcomes[0] and outcomes[1] == ""
    assert "ada is the only node that works" in outcomes[2] and "no node 'eve'" in outcomes[3]
    world.store.telemetry.drain("eve")
    taken_back = command(world.home.database, "undrain_node", node="eve")
    await world.look()
    assert world.outcome(taken_back) == "" and "eve" not in world.store.telemetry.drained(), "it is away"


async def test_a_cluster_that_does_not_answer_is_told_of_once(world: World) -> None:
    await world.look()
    world.error = ClusterUnreachable("The bridge has died.")
    assert await world.look() == [
        "warning: The cluster does not answer: The bridge has died.",
        "warning: Node bob is gone.",
    ]
    assert [row.state for row in world.rows()] == ["ready", "gone"]
    assert await world.look() == []
    world.error = None
    assert await world.look() == ["info: Node bob (10.0.0.6) is back."]


async def test_workers_that_cannot_move_say_so(world: World) -> None:
    await world.look()
    world.nodes, world.refuses = (HERE,), ConfigError("No node can be used.")
    await world.look()
    await world.between_steps()
    assert world.said[-1] == "error: The workers cannot go elsewhere: No node can be used."
