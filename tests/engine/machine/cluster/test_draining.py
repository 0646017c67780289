"""Which node a word means, and that the last one is not drained."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings, strategies as st

from marlaas.engine.machine.cluster.node import meant, of_each_name, why_not_drain

from ....examples import examples


@dataclass(frozen=True)
class Machine:
    name: str
    id: str = "00"
    alive: bool = True
    refused: str = ""


ADA, BOB, EVE = Machine("ada", "a1b2c3d4"), Machine("bob", "a1b2ffff"), Machine("eve", refused="torch is older there.")


def test_a_node_is_meant_by_name_or_by_its_id() -> None:
    nodes = [ADA, BOB, EVE]
    assert meant("bob", nodes) == ("bob", "")
    assert meant("a1b2c", nodes) == ("ada", "")
    assert meant("adda", nodes) == ("", "The cluster has no node 'adda'. Did you mean ada?")
    for word in ("a1b2", "zzz", ""):
        assert meant(word, nodes) == ("", f"The cluster has no node {word!r}. `marlaas cluster status` lists them.")


def test_the_last_that_works_is_not_drained() -> None:
    assert why_not_drain("ada", [ADA, BOB], set()) == ""
    assert why_not_drain("eve", [ADA, EVE], set()) == ""
    for nodes, drained in (
        ([ADA], set()),
        ([ADA, BOB], {"bob"}),
        ([ADA, EVE], set()),
        ([ADA, Machine("x", alive=False)], set()),
    ):
        assert "ada is the only node that works" in why_not_drain("ada", nodes, drained)


MACHINES = st.lists(
    st.builds(Machine, st.sampled_from("abcdef"), alive=st.booleans(), refused=st.sampled_from(["", "no"])),
    unique_by=lambda machine: machine.name,
)


@settings(max_examples=examples(100))
@given(MACHINES, st.sets(st.sampled_from("abcdef")), st.sampled_from("abcdef"))
def test_somebody_always_works(nodes: list[Machine], drained: set[str], name: str) -> None:
    if not why_not_drain(name, nodes, drained):
        assert any(node.alive and not node.refused and node.name not in drained | {name} for node in nodes)


@settings(max_examples=examples(100))
@given(st.lists(st.builds(Machine, st.sampled_from("abc"), st.text("ab"), alive=st.booleans())))
def test_each_name_is_there_once(nodes: list[Machine]) -> None:
    found = of_each_name(nodes)
    assert sorted(node.name for node in found) == sorted({node.name for node in nodes})
    alive = {node.name for node in nodes if node.alive}
    assert all(node.alive for node in found if node.name in alive)
