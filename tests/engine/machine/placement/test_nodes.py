"""Imaginary clusters: a table of what they do, and what holds for every one of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.devices.machine import Link, SamplerAssignment, TrainerAssignment, UsableNode
from marlaas.engine.errors import BaseModelError, ConfigError
from marlaas.engine.machine.placement.capacity import usable
from marlaas.engine.machine.placement.choices import Choices
from marlaas.engine.machine.placement.place import place_over
from marlaas.engine.machine.plan import PlacementPlan, staffed
from marlaas.engine.models.memory import Wanted
from tests.engine.machine.placement.imaginary import (
    B06,
    B8,
    B70,
    GB,
    HEAD,
    LAPTOP,
    PAIR,
    SERVER,
    TINY,
    bases,
    cards,
    machines,
    plain,
    shape_of_nodes as shape,
    slow,
    software,
)

FOUR = tuple(cards(name, "A100") for name in (HEAD, "b", "c", "d"))
EIGHT = ("A100",) * 8
FOUR_OF_HEAD, ALL_OF_B = "head:0 head:1 head:2 head:3", "b:0 b:1 b:2 b:3 b:4 b:5 b:6 b:7"
SMALL = [plain(name, PAIR) for name in (HEAD, "b", "c")]
ONE = cards(HEAD, "4090")
WIFI, SLOW = slow(0.005, 10e6), slow(0.05, 1e6)
CROWDED = replace(LAPTOP, memory=GB // 4)

# what samples | what trains, and how a card is shared
TABLE = [
    ("the shipped base, three small nodes", SMALL, TINY, "head:cpu1 | b:cpu2 c:cpu2 f32"),
    ("two laptops: each has a stage", [plain(HEAD), plain("b")], B06, "head:cpu3 | b:cpu4 f32"),
    ("a laptop and a workstation", [plain(HEAD), cards("b", "4090")], B06, "b:0 | b:0 bf16 shared"),
    ("two workstations", [ONE, cards("b", "4090")], B06, "b:0 | head:0 bf16"),
    ("compute trains, bandwidth samples", [cards(HEAD, "H20"), cards("b", "H100")], B8, "head:0 | b:0 bf16"),
    ("four workstations", FOUR, B8, "b:0 c:0 d:0 | head:0 bf16"),
    ("eight, eight", [cards(HEAD, *EIGHT), cards("b", *EIGHT)], B8, f"{FOUR_OF_HEAD} {ALL_OF_B} | head:4+5+6+7 bf16"),
    ("one is behind a slow line", [ONE, cards("b", "4090", link=SLOW)], B06, "head:0 | head:0 bf16 shared"),
    ("one is behind a radio", [ONE, cards("b", "4090", link=WIFI)], B06, "b:0 | head:0 bf16"),
    ("one drains", [ONE, cards("b", "4090", draining=True)], B06, "head:0 | head:0 bf16 shared"),
    ("one has another Python", [ONE, cards("b", "4090", refused="Python 3.10.")], B06, "head:0 | head:0 bf16 shared"),
    ("the head drains", [cards(HEAD, "4090", draining=True), cards("b", "4090")], B06, "b:0 | b:0 bf16 shared"),
    ("one has no memory left", [plain(HEAD, SERVER), plain("b", CROWDED)], B06, "head:cpu16 | head:cpu16 f32"),
    ("it fits one of them, in four bits", [cards(HEAD, "3060"), cards("b", *EIGHT[:4])], B70, "b:0 b:1 b:2 | b:3 nf4"),
]  # fmt: skip


@pytest.mark.parametrize(("nodes", "base", "plan"), [pytest.param(*row[1:], id=row[0]) for row in TABLE])
def test_where_work_goes(nodes: list[UsableNode], base: Wanted, plan: str) -> None:
    assert shape(place_over(nodes, base)) == plan


BOTH = [cards(HEAD, "4090", "4090"), cards("b", "4090", "4090")]
CHOSEN = [
    ("a node for each stage", Choices(rollout=["b"], training=["head"]), "b:0 b:1 | head:0+1 bf16"),
    ("the other way round", Choices(rollout=["head"], training=["b"]), "head:0 head:1 | b:0+1 bf16"),
    ("one card of each", Choices(rollout=["b/gpu 1"], training=["gpu 0"]), "b:1 | head:0 bf16"),
    ("sampling on one node alone", Choices(rollout=["B"]), "b:0 b:1 | head:0+1 bf16"),
    ("training on its processor", Choices(training=["b/cpu"]), "head:0 head:1 b:0 b:1 | b:cpu32 f32"),
    ("a node behind a slow line", Choices(training=["b"]), "head:0 head:1 b:0 | b:1 bf16"),
]


@pytest.mark.parametrize(("choices", "plan"), [pytest.param(*row[1:], id=row[0]) for row in CHOSEN])
def test_named_devices_hold(choices: Choices, plan: str) -> None:
    nodes = [BOTH[0], replace(BOTH[1], link=SLOW)] if choices == CHOSEN[-1][1] else BOTH
    assert shape(place_over(nodes, B06, choices)) == plan


@pytest.mark.parametrize(
    ("nodes", "choices", "words"),
    [
        ([], Choices(), "No node can be used"),
        ([plain(HEAD, draining=True)], Choices(), "No node can be used"),
        (BOTH, Choices(rollout=["c/gpu 0"]), "names the node 'c'"),
        ([BOTH[1], cards("c", "4090")], Choices(training=["gpu 0"]), "the engine's own machine is not to be used"),
    ],
)
def test_what_cannot_be_is_an_error(nodes: list[UsableNode], choices: Choices, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        place_over(nodes, B06, choices)


def planned(nodes: list[UsableNode], base: Wanted, choices: Choices | None = None, trainers: int = 0) -> PlacementPlan:
    return staffed(place_over(nodes, base, choices, (), trainers), trainers, base, nodes)


def test_a_base_that_fits_nowhere_is_an_error() -> None:
    with pytest.raises(BaseModelError, match="GB of memory"):
        planned([plain(HEAD, CROWDED), plain("b", CROWDED)], B8)


def test_trainers_that_are_asked_for_are_had_in_all() -> None:
    nodes = [plain(name) for name in (HEAD, "b", "c", "d")]
    for count in (1, 2, 3, 4):
        assert len(planned(nodes, TINY, trainers=count).placement.trainers) == count


def test_policies_are_divided_among_the_cards_that_train() -> None:
    """A trainer for each card; with fewer policies than cards, a trainer has as few cards as may be."""
    nodes, apart = [cards(name, *EIGHT) for name in (HEAD, "b")], Choices(rollout=["b"], training=["head"])
    for tasks, sizes in ((32, [1] * 8), (8, [1] * 8), (3, [2, 3, 3]), (1, [8])):
        placement = planned(nodes, replace(B8, tasks=tasks), apart).placement
        assert [len(own.place.gpus) for own in placement.trainers] == sizes
    placement = planned(nodes, B8, apart, trainers=2).placement
    assert [len(own.place.gpus) for own in placement.trainers] == [4, 4], "as many as are asked for"


def test_no_card_is_idle_where_policies_are_few() -> None:
    """Of many nodes more cards train, with several for each trainer, than there are policies."""
    nodes = [cards(f"n{number}", *EIGHT) for number in range(8)]
    placement = planned(nodes, replace(B8, tasks=4)).placement
    assert len(placement.trainers) == 4 and len(placement.devices) == 64


def test_no_more_nodes_train_than_there_are_policies() -> None:
    nodes = [plain(name) for name in (HEAD, "b", "c", "d")]
    assert len(planned(nodes, replace(B06, tasks=1)).placement.trainers) == 1


def test_samplers_have_contexts_of_one_length() -> None:
    nodes = [plain(HEAD, SERVER), plain("b", replace(LAPTOP, memory=6 * GB)), plain("c", SERVER)]
    plan = planned(nodes, B06, Choices(rollout=["head", "b", "c"], training=["head"]))
    assert len(plan.memory) > 1 and len({memory.context for memory in plan.memory}) == 1


def test_why_is_said() -> None:
    nodes = [ONE, cards("b", "4090", link=slow(0.1, 10e6)), plain("c", draining=True), plain("d", PAIR)]
    nodes += [cards("e", "4090", refused="It runs Python 3.10, and the head 3.11."), cards("f", "4090", link=SLOW)]
    assert place_over(nodes, B06).reasons == (
        "b samples, and head trains: sampling takes about 2.0 times the work of training.",
        "d neither samples nor trains: it cannot, or it would add too little.",
        "head: Training is on gpu 0 (4090), over the base in bfloat16, with 23.3 GB.",
        "b: vLLM 0.32.0 samples on gpu 0 (4090) with 23.3 GB: room for 74 conversations at their longest.",
        "c drains, so it gets nothing new.",
        "e is not used: It runs Python 3.10, and the head 3.11.",
        "f is not used: the state of a policy takes 40 s to get there.",
    )


def test_a_thousand_cards_are_placed() -> None:
    """Eight of them in each of 125 nodes: all work."""
    nodes = [cards(f"n{number}", *EIGHT) for number in range(125)]
    assert len(place_over(nodes, replace(B8, tasks=1000)).devices) == 1000


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
    drawn = draw(st.lists(nodes, min_size=1, max_size=5))
    ids = ["", "b", "c", "d", "e"] if draw(st.booleans()) else ["a", "b", "c", "d", "e"]
    return [replace(node, node=own, name=own or HEAD) for node, own in zip(drawn, ids, strict=False)]


def attempted(cluster: list[UsableNode], base: Wanted, trainers: int = 0) -> PlacementPlan | None:
    """None if a stage finds no place: then it must be an error that says so."""
    try:
        return planned(cluster, base, trainers=trainers)
    except (ConfigError, BaseModelError) as error:
        assert str(error)
        return None


@given(clusters(), bases, st.sampled_from([0, 0, 1, 3]))
def test_a_plan_keeps_its_promises(cluster: list[UsableNode], base: Wanted, asked: int) -> None:
    plan = attempted(cluster, base, asked)
    assert attempted(cluster[::-1], base, asked) == plan, "the same in any order"
    if plan is None:
        return
    by_id = {node.node: node for node in cluster}
    placement = plan.placement
    workers: list[SamplerAssignment | TrainerAssignment] = [*placement.samplers, *placement.trainers]
    assert all(reason.endswith(".") for reason in placement.reasons)
    assert placement.samplers and placement.samplers[0].name == "rollout" and placement.trainer.name == "training"
    assert len({worker.name for worker in workers}) == len(workers)
    assert len(plan.memory) == len(placement.samplers) and len(plan.training) == len(placement.trainers)
    for place_of in workers:
        assert not by_id[place_of.node].draining and not by_id[place_of.node].refused
    assert len({(own.precision, bool(own.place.gpus)) for own in placement.trainers}) == 1, "trainers are alike"
    if not placement.trainer.place.gpus:
        assert len({len(own.place.cores) or 1 for own in placement.trainers}) == 1, "and give the same bits"
    assert len(placement.trainers) <= max(base.tasks, asked)
    assert len({memory.context for memory in plan.memory}) == 1

    for node in cluster:
        own = [worker for worker in workers if worker.node == node.node]
        cores = [core for worker in own for core in worker.place.cores]
        assert set(cores) <= set(node.machine.cpu.cores)
        assert len(cores) == len(set(cores)) or len(set(cores)) == 1 or asked, "one core may be shared, more are not"
        gpus = {gpu.uuid: gpu for gpu in node.machine.gpus}
        assert {uuid for worker in own for uuid in worker.place.gpus} <= set(gpus)
        for uuid, gpu in gpus.items():
            holders = [worker for worker in own if uuid in worker.place.gpus]
            sizes = [worker.place.memory for worker in holders]
            assert sum(sizes) <= usable(gpu)
        assert main_memory(plan, node) <= node.free, "never more than a node has free"


def main_memory(plan: PlacementPlan, node: UsableNode) -> int:
    """Bytes of a node's main memory that the plan takes."""
    pairs = zip(plan.placement.samplers, plan.memory, strict=True)
    memory = [plan for sampler, plan in pairs if sampler.node == node.node]
    trainers = zip(plan.placement.trainers, plan.training, strict=True)
    memory = memory or [plan for trainer, plan in trainers if trainer.node == node.node][:1]
    return sum(size for own in memory for what, size in own.parts if "card" not in what)


@given(clusters(), bases, st.data())
def test_a_lost_node_leaves_the_placement_without_it(
    cluster: list[UsableNode], base: Wanted, data: st.DataObject
) -> None:
    """Lost, drained and refused are the same for where work goes."""
    lost = data.draw(st.sampled_from(cluster))
    others = [node for node in cluster if node is not lost]
    drained = attempted([replace(node, draining=node.draining or node is lost) for node in cluster], base)
    gone = attempted(others, base) if others else None
    if gone is None or drained is None:
        assert gone is drained is None
        return
    assert (gone.memory, gone.training) == (drained.memory, drained.training)
    assert replace(gone.placement, reasons=()) == replace(drained.placement, reasons=())
