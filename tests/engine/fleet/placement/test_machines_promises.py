"""What holds for every placement over several machines."""

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.base.memory import Wanted
from marlaas.engine.devices.machine import Link, Machine, Rates, SamplerAssignment, TrainerAssignment, UsableNode
from marlaas.engine.errors import BaseModelError, ConfigError
from marlaas.engine.fleet.placement.capacity import kept, sampling_speed, training_speed, usable
from marlaas.engine.fleet.placement.machines import MIXED, Placed, place_over
from marlaas.engine.fleet.placement.place import place
from marlaas.engine.fleet.placement.processor import is_small
from marlaas.engine.fleet.placement.sharing import GAIN, with_trainers
from marlaas.engine.fleet.placement.wishes import Times
from tests.engine.fleet.placement.clusters import HEAD, cards, plain
from tests.engine.fleet.placement.imaginary import ALL, B06, B8, B17, GB, LAPTOP, SERVER, SPECS, TINY
from tests.engine.fleet.placement.test_promises import bases, machines, software, stages

nodes = st.builds(
    lambda machine, installed, memory, call, byte, draining, refused: UsableNode(
        "", "", machine, installed, min(memory * GB, machine.cpu.memory), Link(call, byte), draining, refused
    ),
    machines(),
    software,
    st.integers(1, 512),
    st.sampled_from([0.0, 0.001, 0.1]),
    st.sampled_from([0.0, 1e-9, 1e-6]),
    st.sampled_from([False, False, False, True]),
    st.sampled_from(["", "", "", "It has another Python."]),
)


@st.composite
def clusters(draw: st.DrawFn) -> list[UsableNode]:
    found = draw(st.lists(nodes, min_size=1, max_size=5))
    ids = ["", "b", "c", "d", "e"] if draw(st.booleans()) else ["a", "b", "c", "d", "e"]
    return [replace(node, node=own, name=own or HEAD) for node, own in zip(found, ids, strict=False)]


def placed(found: list[UsableNode], base: Wanted, times: Times) -> Placed | None:
    """None where a stage finds no place: then it must be an error that says so."""
    try:
        return place_over(found, base, times=times)
    except (ConfigError, BaseModelError) as error:
        assert str(error)
        return None


@given(clusters(), bases, stages)
def test_a_placement_keeps_its_promises(found: list[UsableNode], base: Wanted, times: Times) -> None:
    plan = placed(found, base, times)
    assert placed(found, base, times) == plan, "the same in, the same out"
    assert placed(found[::-1], base, times) == plan, "in any order"
    if plan is None:
        return
    by_id = {node.node: node for node in found}
    placement = plan.placement
    workers: list[SamplerAssignment | TrainerAssignment] = [*placement.samplers, *placement.trainers]
    assert all(reason.endswith(".") for reason in placement.reasons)
    assert placement.samplers and placement.samplers[0].name == "rollout" and placement.trainer.name == "training"
    assert len({worker.name for worker in workers}) == len(workers)
    assert len(plan.memory) == len(placement.samplers) and len(plan.training) == len(placement.trainers)
    for worker in workers:
        assert not by_id[worker.node].draining and not by_id[worker.node].refused
    for host in placement.hosts:
        assert not by_id[host.node].draining and not by_id[host.node].refused
    assert len({(own.precision, bool(own.place.gpus)) for own in placement.trainers}) == 1, "trainers are alike"
    if not placement.trainer.place.gpus:
        assert len({len(own.place.cores) or 1 for own in placement.trainers}) == 1, "and give the same bits"
    assert len({memory.context for memory in plan.memory}) == 1

    for node in found:
        own = [worker for worker in workers if worker.node == node.node]
        cores = [core for worker in own for core in worker.place.cores]
        assert set(cores) <= set(node.machine.cpu.cores)
        assert len(cores) == len(set(cores)) or len(set(cores)) == 1, "one core may be shared, more are not"
        on_cards = [uuid for worker in own for uuid in worker.place.gpus]
        gpus = {gpu.uuid: gpu for gpu in node.machine.gpus}
        assert set(on_cards) <= set(gpus)
        for uuid, gpu in gpus.items():
            holders = [worker for worker in own if uuid in worker.place.gpus]
            if any(worker.sharing == "sleep" for worker in holders):
                assert max(worker.place.memory for worker in holders) <= usable(gpu)
            else:
                assert sum(worker.place.memory for worker in holders) <= usable(gpu)
        assert main_memory(plan, node) <= node.free, "never more than a node has free"


def main_memory(plan: Placed, node: UsableNode) -> int:
    """Bytes of a node's main memory that the plan takes."""
    taken, trains = 0, False
    for sampler, memory in zip(plan.placement.samplers, plan.memory, strict=True):
        if sampler.node == node.node:
            taken += sum(size for what, size in memory.parts if "card" not in what)
            trains = trains or any("train" in what for what, _ in memory.parts)
    if not trains:
        for trainer, memory in zip(plan.placement.trainers, plan.training, strict=True):
            if trainer.node == node.node:
                return taken + sum(size for what, size in memory.parts if "card" not in what)
    return taken


@given(machines(), software, bases, stages, st.integers(0, 3))
def test_one_machine_is_placed_as_ever(
    machine: Machine, installed: object, base: Wanted, times: Times, trainers: int
) -> None:
    node = UsableNode("", HEAD, machine, installed, 1 << 50)  # type: ignore[arg-type]
    small, whole = is_small(base.parameters), place(machine, node.software, base, None, times)
    alone = with_trainers(whole, trainers, small, base.tasks)
    assert place_over([node], base, None, times, trainers).placement == alone


@given(clusters(), bases, stages, st.data())
def test_a_lost_node_leaves_the_placement_without_it(
    found: list[UsableNode], base: Wanted, times: Times, data: st.DataObject
) -> None:
    """Lost, drained and refused are the same for where work goes."""
    lost = data.draw(st.sampled_from(found))
    others = [node for node in found if node is not lost]
    drained = placed([replace(node, draining=node.draining or node is lost) for node in found], base, times)
    gone = placed(others, base, times) if others else None
    if gone is None or drained is None:
        assert gone is drained is None
        return
    assert (gone.memory, gone.training) == (drained.memory, drained.training)
    assert replace(gone.placement, reasons=()) == replace(drained.placement, reasons=())


@given(clusters(), bases, stages, st.integers(1, 40))
def test_policies_are_divided_among_trainers(found: list[UsableNode], base: Wanted, times: Times, tasks: int) -> None:
    """Each trainer can have a policy, each card at most one trainer, and no trainer has cards that another could use
    for a policy of its own: where one has two or more, there are as many trainers as policies."""
    plan = placed(found, replace(base, tasks=tasks), times)
    if plan is None:
        return
    trainers = plan.placement.trainers
    held = [(own.node, uuid) for own in trainers for uuid in own.place.gpus]
    assert len(held) == len(set(held))
    if trainers[0].place.gpus:
        assert len(trainers) <= tasks
    if any(len(own.place.gpus) > 1 for own in trainers):
        together = [own for own in trainers if len(own.place.gpus) > 1]
        nodes_that_train = len({own.node for own in trainers})
        assert len(trainers) > tasks - nodes_that_train, f"{together} could be more"


def speed(found: list[UsableNode], base: Wanted, times: Times) -> float:
    """Modelled speed of the slower stage."""
    return place_over(found, base, times=times).speed


measured = st.builds(Rates, st.floats(1e13, 2e15), st.floats(1e11, 8e12))


def with_card(name: str, rates: Rates) -> UsableNode:
    made = cards(name, "A100")
    gpu = replace(made.machine.gpus[0], rates=rates, free=80 * GB)
    return replace(made, machine=replace(made.machine, gpus=(gpu,)))


@given(st.lists(measured, min_size=1, max_size=6), measured, stages, st.sampled_from([B06, B17, B8]))
def test_a_further_node_makes_nothing_slower(rates: list[Rates], more: Rates, times: Times, base: Wanted) -> None:
    """Beyond what must be gained before one node does both stages, or a card is shared."""
    found = [with_card(name, rate) for name, rate in zip((HEAD, "b", "c", "d", "e", "f"), rates, strict=False)]
    assert speed([*found, with_card("x", more)], base, times) >= speed(found, base, times) / GAIN / MIXED * 0.999


@given(st.integers(1, 6), st.sampled_from([LAPTOP, SERVER]), stages, st.sampled_from([TINY, B06]))
def test_a_further_processor_makes_nothing_slower(count: int, cpu: object, times: Times, base: Wanted) -> None:
    found = [plain(name, cpu) for name in (HEAD, "b", "c", "d", "e", "f", "g")[: count + 1]]  # type: ignore[arg-type]
    assert speed(found, base, times) >= speed(found[:-1], base, times) / MIXED * 0.999


@pytest.mark.parametrize("count", [16, 125])
def test_a_thousand_cards_are_placed(count: int) -> None:
    """Eight of them in each of 125 nodes."""
    found = [cards(f"n{number}", *["A100"] * 8) for number in range(count)]
    placement = place_over(found, replace(B8, tasks=1000)).placement
    used = len(placement.devices)
    assert used == 8 * count, "all of them work"
    training = sum(len(own.place.gpus) for own in placement.trainers)
    rates = SPECS["A100"][2] * 1e12, SPECS["A100"][3] * 1e12
    sampled, trained = sampling_speed(Rates(*rates)) / 2, training_speed(Rates(*rates))
    assert abs(training - used * sampled / (sampled + trained)) <= 4, "both stages are as fast, to within half a node"


def test_what_a_link_costs() -> None:
    assert kept(1.0, 0.0, 1) == 1.0
    assert kept(1.0, 1.0, 1) == 0.5
    assert kept(1.0, 1.0, 2) == 1.0, "two fill each other's waits"
    assert kept(1.0, 9.0, 5) == 0.5


def test_software_decides_at_each_node_by_itself() -> None:
    bare = replace(cards("b", "A100"), software=replace(ALL, vllm="", torch_cuda=False))
    placement = place_over([cards(HEAD, "A100"), bare], B06).placement
    assert {(own.node, own.kind) for own in placement.samplers} == {("id-b", "llama.cpp")}
