"""A plan over several machines, and the workers that it needs on each."""

from dataclasses import replace
from pathlib import Path

from marlaas.engine.devices.machine import UsableNode
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import RolloutSettings, Settings, TrainingSettings
from marlaas.engine.machine.plan import PlacementPlan, on_machines, worker_specs
from marlaas.engine.models.find import load_base
from tests.engine.machine.placement.clusters import HEAD, PAIR, cards, plain

BASE = load_base("tiny")
THREE = [plain(name, PAIR) for name in (HEAD, "b", "c")]
ON_CARDS = Settings(
    rollout=RolloutSettings(devices=("b/gpu 0", "b/gpu 1")), training=TrainingSettings(devices=("gpu 1",))
)


def specs(plan: PlacementPlan, settings: Settings = Settings()) -> list[tuple[str, str, str]]:  # noqa: B008
    return [(spec.name, spec.node, spec.device) for spec in worker_specs(BASE, Home(Path("home")), settings, plan)]


def test_a_drained_node_is_named_beside_the_only_machine() -> None:
    plan = on_machines(BASE, Settings(), [THREE[0], replace(THREE[1], draining=True)])
    assert plan.placement.nodes == {""}
    assert plan.placement.reasons[-1] == "b drains, so it gets nothing new."


def test_workers_of_three_small_nodes() -> None:
    plan = on_machines(BASE, Settings(), THREE)
    assert specs(plan) == [
        ("training", "id-b", "cores 0-1"),
        ("training-2", "id-c", "cores 0-1"),
        ("rollout", "", "core 1"),
    ]
    assert len(plan.training) == 2 and len(plan.memory) == 1


def test_cards_are_those_of_their_node() -> None:
    nodes = [cards(HEAD, "A100", "A100"), cards("b", "4090", "4090")]
    plan = on_machines(BASE, ON_CARDS, nodes)
    assert specs(plan, ON_CARDS) == [
        ("training", "", "gpu 1"),
        ("rollout", "id-b", "gpu 0"),
        ("rollout-2", "id-b", "gpu 1"),
    ]
    assert plan.placement.cards == {"GPU-1"}, "of the engine's own machine"
    found = {spec.name: spec for spec in worker_specs(BASE, Home(Path("home")), ON_CARDS, plan)}
    assert found["rollout"].environment["CUDA_VISIBLE_DEVICES"] == "GPU-0"
    assert found["training"].environment["CUDA_VISIBLE_DEVICES"] == "GPU-1"


def test_one_process_is_sampler_and_trainer_of_one_node() -> None:
    settings = Settings(rollout=RolloutSettings(devices=("b",)), training=TrainingSettings(devices=("b/gpu 0",)))
    plan = on_machines(BASE, settings, [plain(HEAD), cards("b", "4090")])
    assert specs(plan, settings) == [("rollout", "id-b", "gpu 0")]


def test_samplers_side_by_side_on_each_node() -> None:
    settings = Settings(rollout=RolloutSettings(samplers=("llama.cpp", "torch")))
    plan = on_machines(BASE, settings, [plain(HEAD), plain("b")])
    assert {own.kind for own in plan.placement.samplers} == {"llama.cpp", "torch"}
    assert len(plan.memory) == len(plan.placement.samplers)


def test_the_link_and_machine_of_an_assignment() -> None:
    plan = on_machines(BASE, Settings(), THREE)
    node: UsableNode = THREE[1]
    assert plan.machine_at("id-b") == node.machine and plan.link_to("id-b") == node.link
    assert plan.machine is None
