"""Imaginary clusters, and where the work goes there: a table to be read, and what holds for each of them."""

from dataclasses import replace

import pytest

from marlaas.engine.base.memory import Wanted
from marlaas.engine.devices.machine import UsableNode
from marlaas.engine.errors import BaseModelError, ConfigError
from marlaas.engine.fleet.placement.machines import place_over
from marlaas.engine.fleet.placement.wishes import Choices, Times
from tests.engine.fleet.placement.clusters import HEAD, PAIR, cards, plain, shape, slow
from tests.engine.fleet.placement.imaginary import B06, B8, B70, GB, LAPTOP, SERVER, TINY

FOUR = tuple(cards(name, "A100") for name in (HEAD, "b", "c", "d"))
EIGHT = ("A100",) * 8
THREE, ALL_OF_B = "head:0 head:1 head:2", "b:0 b:1 b:2 b:3 b:4 b:5 b:6 b:7"
OTHERS = "head:3 head:4 head:5 head:6 head:7"
SMALL = [plain(name, PAIR) for name in (HEAD, "b", "c")]
ONE = cards(HEAD, "4090")
WIFI, SLOW = slow(0.005, 10e6), slow(0.05, 1e6)
CROWDED = replace(LAPTOP, memory=GB // 4)

# what samples | what trains, and how a card is shared
TABLE = [
    ("the shipped base, three small nodes", SMALL, TINY, "head:cpu1 | b:cpu2 c:cpu2 f32"),
    ("two laptops: one does both", [plain(HEAD), plain("b")], B06, "b:cpu2 | b:cpu2 head:cpu2 f32"),
    ("a laptop and a workstation", [plain(HEAD), cards("b", "4090")], B06, "b:0 | b:0 bf16 base"),
    ("two workstations", [cards(HEAD, "4090"), cards("b", "4090")], B06, "b:0 | head:0 bf16"),
    ("compute trains, bandwidth samples", [cards(HEAD, "H20"), cards("b", "H100")], B8, "head:0 | b:0 bf16"),
    ("four workstations", FOUR, B8, "b:0 c:0 d:0 | head:0 bf16"),
    ("eight, eight", [cards(HEAD, *EIGHT), cards("b", *EIGHT)], B8, f"{THREE} {ALL_OF_B} | {OTHERS} bf16"),
    ("one is behind a slow line", [ONE, cards("b", "4090", link=SLOW)], B06, "head:0 b:0 | head:0 bf16 base"),
    ("one is behind a radio", [cards(HEAD, "4090"), cards("b", "4090", link=WIFI)], B06, "b:0 | head:0 bf16"),
    ("one drains", [cards(HEAD, "4090"), cards("b", "4090", draining=True)], B06, "head:0 | head:0 bf16 base"),
    ("one has another Python", [ONE, cards("b", "4090", refused="Python 3.10.")], B06, "head:0 | head:0 bf16 base"),
    ("the head drains", [cards(HEAD, "4090", draining=True), cards("b", "4090")], B06, "b:0 | b:0 bf16 base"),
    ("one has no memory left", [plain(HEAD, SERVER), plain("b", CROWDED)], B06, "head:cpu16 | head:cpu16 f32"),
    ("it fits one of them, in four bits", [cards(HEAD, "3060"), cards("b", *EIGHT[:4])], B70, "b:0 b:1 b:2 | b:3 nf4"),
]  # fmt: skip


@pytest.mark.parametrize(("nodes", "base", "plan"), [pytest.param(*row[1:], id=row[0]) for row in TABLE])
def test_where_work_goes(nodes: list[UsableNode], base: Wanted, plan: str) -> None:
    assert shape(place_over(nodes, base).placement) == plan


BOTH = [cards(HEAD, "4090", "4090"), cards("b", "4090", "4090")]
CHOSEN = [
    ("a node for each stage", Choices(rollout=["b"], training=["head"]), "b:0 b:1 | head:0 head:1 bf16"),
    ("the other way round", Choices(rollout=["head"], training=["b"]), "head:0 head:1 | b:0 b:1 bf16"),
    ("one card of each", Choices(rollout=["b/gpu 1"], training=["gpu 0"]), "b:1 | head:0 bf16"),
    ("sampling on one node alone", Choices(rollout=["B"]), "b:0 b:1 | head:0 head:1 bf16"),
    ("training on its processor", Choices(training=["b/cpu"]), "head:0 head:1 | b:cpu32 f32"),
]


@pytest.mark.parametrize(("choices", "plan"), [pytest.param(*row[1:], id=row[0]) for row in CHOSEN])
def test_named_devices(choices: Choices, plan: str) -> None:
    assert shape(place_over(BOTH, B06, choices).placement) == plan


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


def test_a_base_that_fits_nowhere_is_an_error() -> None:
    with pytest.raises(BaseModelError):
        place_over([plain(HEAD, CROWDED), plain("b", CROWDED)], B8)


def test_trainers_that_are_asked_for_are_had_in_all() -> None:
    nodes = [plain(name) for name in (HEAD, "b", "c", "d")]
    for count in (1, 2, 3, 4):
        assert len(place_over(nodes, TINY, trainers=count).placement.trainers) == count


def test_policies_are_divided_among_the_cards_that_train() -> None:
    """A trainer for each card; where there are fewer policies than cards, a trainer has as few cards as may be."""
    nodes, apart = [cards(name, *EIGHT) for name in (HEAD, "b")], Choices(rollout=["b"], training=["head"])
    for tasks, sizes in ((32, [1] * 8), (8, [1] * 8), (3, [2, 3, 3]), (1, [8])):
        placed = place_over(nodes, replace(B8, tasks=tasks), apart).placement
        assert [len(own.place.gpus) for own in placed.trainers] == sizes
    placed = place_over(nodes, B8, apart, trainers=2).placement
    assert [len(own.place.gpus) for own in placed.trainers] == [4, 4], "as many as are asked for"


def test_no_card_is_idle_where_policies_are_few() -> None:
    """Of many nodes more cards train, with several for each trainer, than there are policies."""
    nodes = [cards(f"n{number}", *EIGHT) for number in range(8)]
    placed = place_over(nodes, replace(B8, tasks=4)).placement
    assert len(placed.trainers) == 4 and len(placed.devices) == 64


def test_as_many_nodes_train_as_there_are_policies() -> None:
    nodes = [plain(name) for name in (HEAD, "b", "c", "d")]
    assert len(place_over(nodes, replace(B06, tasks=1)).placement.trainers) == 1


def test_trainers_on_processors_have_as_many_threads() -> None:
    nodes = [plain(HEAD, SERVER), plain("b", SERVER), plain("c", replace(LAPTOP, cores=(0, 1, 2), count=3))]
    placed = place_over(nodes, B06, times=Times(0.1, 1.0)).placement
    assert len({len(own.place.cores) for own in placed.trainers}) == 1


def test_samplers_have_contexts_of_one_length() -> None:
    nodes = [plain(HEAD, SERVER), plain("b", replace(LAPTOP, memory=6 * GB)), plain("c", SERVER)]
    placed = place_over(nodes, B06, times=Times(100.0, 1.0))
    assert len(placed.memory) > 1
    assert len({plan.context for plan in placed.memory}) == 1


def test_why_is_said() -> None:
    nodes = [cards(HEAD, "4090"), cards("b", "4090", link=slow(0.1, 10e6)), plain("c", draining=True), plain("d", PAIR)]
    nodes += [cards("e", "4090", refused="It runs Python 3.10, and the head 3.11.")]
    assert place_over(nodes, B06).placement.reasons == (
        "b samples, and head trains: sampling takes 2.0 times the work of training, as assumed until it is measured.",
        "head: Training is on gpu 0 (4090), over the base in bfloat16, with 23.3 GB.",
        "b: vLLM 0.32.0 samples on gpu 0 (4090) with 23.3 GB: room for 74 conversations at their longest.",
        "The link to b takes 100 ms for a call and 4.1 s for a policy's state, which costs 2% of its speed.",
        "d neither samples nor trains: it cannot, or it would add too little to the others.",
        "c drains, so it gets nothing new.",
        "e is not used: It runs Python 3.10, and the head 3.11.",
        "Environments and scores run on head (32), b (32) and d (2), in up to 66 processes that compute.",
    )


def test_environments_go_first_where_no_worker_computes() -> None:
    nodes = [plain(HEAD), plain("b", SERVER), plain("c", SERVER)]
    placed = place_over(nodes, B06, Choices(rollout=["b"], training=["head"])).placement
    assert [host.name for host in placed.hosts] == [HEAD, "c", "b"]
