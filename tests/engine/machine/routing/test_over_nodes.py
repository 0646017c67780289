"""Policies over nodes: each goes where its mix is cheap, and those that speak often stay near."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from marlaas.engine.devices.machine import Link, Machine, Place, SamplerAssignment
from marlaas.engine.fairness.line import Ledger
from marlaas.engine.machine.placement.capacity import rates_of
from marlaas.engine.machine.placement.choices import Choices
from marlaas.engine.machine.placement.place import place_over
from marlaas.engine.machine.routing.assignment import Demand, TokenCosts, route
from marlaas.engine.machine.routing.router import AGAIN, Router, SamplerEndpoints, behind, device_of, rates_at
from marlaas.engine.models.find import load_base
from marlaas.engine.rollout.slots import Replicas
from marlaas.engine.samplers.protocol import SamplerStats
from marlaas.engine.spec.task import ONLY, SamplingSpec, TaskSpec

from ...rollout.endpoints import endpoint
from ...rollout.fake import FakeSampler
from ..placement.clusters import HEAD, cards, plain
from ..placement.imaginary import B8, LAPTOP, SERVER

READER, WRITER, TRAINER = cards("reader", "H100"), cards("writer", "H20"), cards(HEAD, "A100")
"""Nodes with much arithmetic, with much bandwidth, and with enough of both to train."""


def seconds(machine: Machine, read: int, written: int) -> float:
    """What a sampler on the only card of a machine takes for so many tokens, by the card's rates."""
    rates = rates_of(machine.gpus[0], machine.gpus)
    return 2 * B8.parameters * read / rates.matrix + 2 * B8.parameters * written / (32 * rates.bandwidth)


class Node(FakeSampler):
    """A sampler of a node, which says its totals."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self._machine = machine
        self._totals = (0, 0, 0.0)

    def work(self, read: int, written: int) -> None:
        sampled, prefilled, busy = self._totals
        self._totals = sampled + written, prefilled + read, busy + seconds(self._machine, read, written)

    async def stats(self) -> SamplerStats:
        return SamplerStats(self._totals[0], self._totals[1], self._totals[2], 0, 0)


async def test_readers_and_writers_part_where_nodes_differ() -> None:
    """Samplers are on two unlike nodes; two tasks of unlike mixes end up one on each."""
    nodes = [TRAINER, READER, WRITER]
    choices = Choices(rollout=["reader", "writer"], training=[HEAD])
    sampling = place_over(nodes, B8, choices).samplers
    assert {own.node for own in sampling} == {READER.node, WRITER.node}
    machines = {node.node: node.machine for node in (READER, WRITER)}
    workers = {own.name: Node(machines[own.node]) for own in sampling}
    places = [endpoint(worker, 32, 2048, name) for name, worker in workers.items()]
    rates = rates_at(sampling, lambda node: machines[node])
    endpoints, ledger, now = SamplerEndpoints(places, {}, load_base("tiny"), rates), Ledger(), [0.0]
    router = Router(places, endpoints.costs, ledger.mixes, lambda: now[0])
    for task, (read, written) in ((1, (30_000, 20)), (2, (20, 2_000))):
        router.join(
            task, TaskSpec("lab", f"t{task}", "sums", sampling=SamplingSpec(max_tokens=32, max_episode_tokens=256))
        )
        ledger.rollout(task, read, written, policy=ONLY)
        ledger.environment(task, 0.0)
    for _ in range(3):
        for worker in workers.values():
            worker.work(900_000, 100)
            await endpoints.stats(1.0)
            worker.work(100, 90_000)
            await endpoints.stats(1.0)
        now[0] += AGAIN
        most = {task: router.shares(task, ONLY)[0].sampler for task in (1, 2)}
    where = {own.name: own.node for own in sampling}
    assert {task: where[name] for task, name in most.items()} == {1: READER.node, 2: WRITER.node}


def test_rates_of_processors_count_over_nodes() -> None:
    """On one machine kinds of samplers differ, over several the machines do."""
    nodes = {"": plain(HEAD, LAPTOP).machine, "b": plain("b", SERVER).machine}
    here = SamplerAssignment("rollout", "torch", Place(cores=(0, 1)))
    there = SamplerAssignment("rollout-2", "torch", Place(cores=tuple(range(32))), node="b")
    found = rates_at([here, there], nodes.__getitem__)
    assert found["rollout-2"].matrix == 16 * found["rollout"].matrix
    assert rates_at([here], nodes.__getitem__) == {}


def test_processors_of_two_nodes_are_not_alike() -> None:
    """Their tokens may cost differently, whatever their cores are called."""
    place = Place(cores=(0, 1))
    machine = plain("b", LAPTOP).machine
    named = replace(machine, cpu=replace(machine.cpu, name="EPYC"))
    words = {
        device_of(SamplerAssignment("rollout", "torch", place), machine),
        device_of(SamplerAssignment("rollout-2", "torch", place, node="b"), machine),
        device_of(SamplerAssignment("rollout-3", "torch", place, node="c"), machine),
        device_of(SamplerAssignment("rollout-4", "torch", place, node="d"), named),
    }
    assert words == {"2 cores", "2 cores of b", "2 cores of c", "2 cores of EPYC"}


def test_what_speaks_often_stays_near() -> None:
    """Equal samplers, one of them far: tasks with the same tokens in many turns and in one."""
    near = TokenCosts("near", 1e-4, 3e-4)
    far = behind(TokenCosts("far", 1e-4, 3e-4), Link(call=0.1), slots=1)
    demands = [Demand("agent", 1000, 1000, turns=20), Demand("essay", 1000, 1000, turns=1)]
    routes = route([near, far], demands)
    assert routes["essay"][0].sampler == "far"
    assert [share.sampler for share in routes["agent"]] == ["near"]


@pytest.mark.parametrize("link", [None, Link()])
def test_no_link_costs_nothing(link: Link | None) -> None:
    costs = TokenCosts("near", 1e-4, 3e-4)
    assert behind(costs, link, 8) is costs


def test_a_turn_goes_far_only_where_it_is_done_sooner() -> None:
    near, far = endpoint(FakeSampler(), 8, 512, "near"), endpoint(FakeSampler(), 8, 512, "far")
    far.backlog.way = 0.5
    tokens = np.arange(10, dtype=np.int32)
    chosen: Mapping[bool, str] = {
        busy: _chosen(Replicas([near, far]), near, tokens, 10_000 if busy else 10) for busy in (False, True)
    }
    assert chosen == {False: "near", True: "far"}


def _chosen(replicas: Replicas, busy: object, tokens: np.ndarray, waiting: int) -> str:
    with busy.backlog.turn(0, waiting):  # type: ignore[attr-defined]
        return replicas.choose(tokens, 10.0)[0].name


def test_the_way_to_a_node_is_told_to_its_backlog() -> None:
    near, far = endpoint(FakeSampler(), 8, 512, "near"), endpoint(FakeSampler(), 8, 512, "far")
    endpoints = SamplerEndpoints([near, far], {}, load_base("tiny"), links={"far": Link(0.25, 1e-6)})
    assert (near.backlog.way, far.backlog.way) == (0.0, 0.25)
    here, there = endpoints.costs()
    assert here.turn == 0 and there.turn == 0.25 / 8
    assert there.prefilled > here.prefilled and there.sampled > here.sampled
