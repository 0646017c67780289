"""How many trainers there are, with which cores and cards, and what people are told of it."""

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.devices.machine import Place, Placement, SamplerAssignment, TrainerAssignment
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import Settings, TrainingSettings
from marlaas.engine.machine.placement.choices import on_cores
from marlaas.engine.machine.placement.place import MOST_TRAINERS, with_trainers
from marlaas.engine.machine.plan import on_processor, trainer_spec
from marlaas.engine.models.find import load_base

BASE = load_base("tiny")
ENOUGH = 64 << 30


def on_cards(count: int, sharing: str = "") -> Placement:
    place = Place(gpus=tuple(f"GPU-{number}" for number in range(count)), memory=1 << 30)
    sampler = SamplerAssignment("rollout", "vllm", Place(gpus=("GPU-9",)))
    return Placement((sampler,), TrainerAssignment("training", place, "bf16", "memory" if sharing else ""))


@pytest.mark.parametrize(("cores", "trainers"), [(1, 1), (2, 1), (4, 1), (6, 1), (8, 2), (16, 4), (64, MOST_TRAINERS)])
def test_a_small_base_has_a_trainer_for_two_cores(cores: int, trainers: int) -> None:
    plan = on_processor(BASE, Settings(), ENOUGH, range(cores))
    assert len(plan.placement.trainers) == trainers
    assert len(with_trainers(on_cores(("torch",), range(cores)), 0, small=False, policies=32).trainers) == 1


@given(st.integers(0, 64), st.integers(1, 9))
def test_all_have_as_many_cores_and_none_is_left_out(cores: int, asked: int) -> None:
    plan = on_cores(("torch",), tuple(range(cores)))
    parts = [trainer.place.cores for trainer in with_trainers(plan, asked, small=True, policies=1).trainers]
    assert len(parts) == asked and len({len(part) for part in parts}) == 1, "else bits would differ"
    whole = plan.trainer.place.cores
    assert {core for part in parts for core in part} <= set(whole)
    if len(whole) >= asked:
        assert len({core for part in parts for core in part}) == len(whole) // asked * asked
    else:
        assert all(len(part) == bool(whole) for part in parts)


@given(st.integers(1, 8), st.integers(0, 12), st.integers(1, 40))
def test_each_has_cards_of_its_own(cards: int, asked: int, policies: int) -> None:
    placement = with_trainers(on_cards(cards), asked, small=True, policies=policies)
    parts = [trainer.place.gpus for trainer in placement.trainers]
    assert len(parts) == min(asked or policies, cards) and all(parts)
    assert [card for part in parts for card in part] == list(on_cards(cards).trainer.place.gpus)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert any("cannot be: training has" in reason for reason in placement.reasons) == (asked > cards)
    assert placement.cards == on_cards(cards).cards
    assert [trainer.name for trainer in placement.trainers][:2] == ["training", "training-2"][: len(parts)]


def test_one_that_shares_a_card_with_a_sampler_stays_alone() -> None:
    placement = with_trainers(on_cards(1, "memory"), 2, small=True, policies=8)
    assert len(placement.trainers) == 1 and "shares its device with a sampler" in placement.reasons[-1]
    assert with_trainers(on_cards(1, "memory"), 0, small=True, policies=8) == on_cards(1, "memory")


def test_each_has_a_base_and_they_divide_the_room_for_policies(tmp_path: Path) -> None:
    one, two = (
        on_processor(BASE, Settings(training=TrainingSettings(trainers=count)), 4 << 30, range(4)) for count in (1, 2)
    )
    parts = [dict(plan.memory[0].parts) for plan in (one, two)]
    for what in ("the trainer's weights", "a training pass", "the trainer's program"):
        assert parts[1][what] == 2 * parts[0][what]
    spec = trainer_spec(BASE, Home(tmp_path), Settings(), two.memory[0], two.placement.trainers[1], 2)
    assert spec.kwargs["held"] == -(-two.memory[0].held // 2) and spec.kwargs["threads"] == 1
    assert spec.name == "training-2"
