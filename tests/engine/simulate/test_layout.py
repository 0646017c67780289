"""Workers of a simulation are where the engine's placement puts them, and as fast as their devices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from marlaas.engine.errors import MarlaasError
from marlaas.engine.machine.plan import on_machines
from marlaas.engine.models.find import load_base
from marlaas.engine.simulate.cluster_file import THREADS, LinkSpec, NodeSpec, layout, settings_of, usable
from tools.random_base.make import hollow_base

from .made_up import profile

FAR = LinkSpec(0.001, 1e9)


def test_a_machine_alone_is_divided_as_the_engine_divides_it() -> None:
    base, settings = load_base("tiny"), settings_of(profile(), 32)
    found = layout([NodeSpec("a", cores=2)], base, profile(), settings)
    (node,) = usable([NodeSpec("a", cores=2)])
    assert found.plan == on_machines(base, settings, [node]) and not found.plan.placement.nodes - {""}
    assert {name: site.node for name, site in found.sites.items()} == {"rollout": "a", "training": "a"}
    assert [site.speed for site in found.sites.values()] == [1.0, 1.0]


def test_a_second_machine_takes_a_stage() -> None:
    nodes = [NodeSpec("a"), NodeSpec("b", link=FAR)]
    found = layout(nodes, load_base("tiny"), profile(), settings_of(profile(), 32))
    assert {site.node for site in found.sites.values()} == {"a", "b"}
    assert found.plan.link_to("b").call == pytest.approx(0.002) and not found.plan.link_to("").call
    without = layout(nodes, load_base("tiny"), profile(), settings_of(profile(), 32), away={"b"})
    assert {site.node for site in without.sites.values()} == {"a"}
    with pytest.raises(MarlaasError, match="No node can be used"):
        layout(nodes, load_base("tiny"), profile(), settings_of(profile(), 32), away={"a", "b"})


def test_stages_run_where_the_file_says() -> None:
    nodes = [NodeSpec("a"), NodeSpec("b", link=FAR), NodeSpec("c", link=FAR)]
    settings = settings_of(profile(), 32, ("c",), ("a", "b"))
    found = layout(nodes, load_base("tiny"), profile(), settings)
    where = {(name.partition("-")[0], site.node) for name, site in found.sites.items()}
    assert where == {("rollout", "c"), ("training", "a"), ("training", "b")}


def test_a_small_base_gains_little_by_threads() -> None:
    found = layout([NodeSpec("a", cores=4, sampling=3.0)], load_base("tiny"), profile(), settings_of(profile(), 32))
    assert found.sites["rollout"].speed == pytest.approx(3.0 * 2**THREADS)


def test_cards_train_and_sample_a_large_base(tmp_path: Path) -> None:
    made = profile()
    on_cards = replace(
        made, sampler=replace(made.sampler, kind="vllm", cores=0), trainer=replace(made.trainer, cores=0)
    )
    nodes = [NodeSpec(name, cores=16, cards=4, sampling=2.0, link=FAR) for name in ("a", "b")]
    found = layout(nodes, hollow_base(tmp_path / "base"), on_cards, settings_of(on_cards, 32))
    placement = found.plan.placement
    assert all(own.kind == "vllm" and own.place.gpus for own in placement.samplers)
    assert all(own.place.gpus for own in placement.trainers)
    assert {site.speed for name, site in found.sites.items() if name.startswith("rollout")} == {2.0}
    places = [*(own.place for own in placement.samplers), *(own.place for own in placement.trainers)]
    cards = [uuid for place in places for uuid in place.gpus]
    assert len(cards) == len(set(cards)) == 8
