"""Links: latency, bandwidth that is shared in turn, and the head's own network, which all share."""

from __future__ import annotations

from marlaas.engine.simulate.cluster_file import LinkSpec, Network


def test_bytes_go_one_after_the_other() -> None:
    network = Network(LinkSpec(), {"a": LinkSpec(0.5, 100.0), "b": LinkSpec(0.0, 1000.0)})
    assert network.seconds("a", 200, now=10.0) == 2.0 + 0.5
    assert network.seconds("a", 100, now=10.0) == 3.0 + 0.5, "behind those that are on their way"
    assert network.seconds("b", 125, now=10.0) == 0.125, "another link"
    assert network.seconds("a", 100, now=100.0) == 1.0 + 0.5, "free again"
    assert network.head.bytes == 525


def test_the_heads_network_is_shared() -> None:
    network = Network(LinkSpec(0.0, 100.0), {"a": LinkSpec(0.0, 1e6), "b": LinkSpec(0.0, 1e6)})
    assert network.seconds("a", 100, now=0.0) == 1.0
    assert network.seconds("b", 100, now=0.0) == 2.0
    assert network.head.busy == 2.0


def test_a_node_without_a_link_is_the_head() -> None:
    network = Network(LinkSpec(1.0, 1.0), {"here": LinkSpec()})
    assert network.seconds("here", 1_000_000, now=0.0) == 0.0
    assert network.head.bytes == 0


def test_what_is_sent_over_a_dark_link_arrives_when_it_is_back() -> None:
    network = Network(LinkSpec(0.0, 1000.0), {"a": LinkSpec(0.5, 100.0), "b": LinkSpec(0.0, 100.0)})
    network.darken("a", until=7.0)
    network.darken("a", until=3.0)
    assert network.seconds("a", 100, now=2.0) == 5.0 + 1.0 + 0.5
    assert network.seconds("b", 100, now=2.0) == 1.0, "another link, and the head's own network is free"
    assert network.seconds("a", 100, now=9.0) == 1.0 + 0.5
