"""Several samplers side by side fit into the memory together, and each is told what is its own."""

from __future__ import annotations

import pytest

from marlaas.engine.errors import BaseModelError
from marlaas.engine.home.settings import RolloutSettings, Settings, TrainingSettings
from marlaas.engine.machine.plan import numbered, of_kind, on_processor, sampler_kinds, with_sampler
from marlaas.engine.models.find import load_base

BASE = load_base("tiny")
ENOUGH = 8 << 30
BOTH = Settings(rollout=RolloutSettings(samplers=("llama.cpp", "torch"), weights="q8_0"))


def test_one_sampler_is_staffed_as_the_settings_name_it() -> None:
    placement_plan = on_processor(BASE, Settings(), ENOUGH, (0, 1))
    assert [assignment.kind for assignment in placement_plan.placement.samplers] == ["torch"] == [placement_plan.kinds]
    assert len(placement_plan.memory) == 1 and placement_plan.context == placement_plan.memory[0].context


def test_two_share_the_memory_and_have_contexts_of_one_length() -> None:
    placement_plan = on_processor(BASE, BOTH, ENOUGH, (0, 1, 2))
    first, second = placement_plan.memory
    assert placement_plan.kinds == "llama.cpp + torch" and first.context == second.context == placement_plan.context
    assert (first.weights, second.weights) == ("q8_0", "f32")
    trains = [any("train" in what for what, _ in plan.parts) for plan in placement_plan.memory]
    assert trains == [True, False], "there is one trainer"
    tight = first.total + second.total - (64 << 20)
    assert sum(plan.total for plan in on_processor(BASE, BOTH, tight, ()).memory) <= tight


def test_what_does_not_fit_together_is_refused() -> None:
    one = (
        on_processor(BASE, Settings(rollout=RolloutSettings(sampler="torch", sequences=8)), ENOUGH, ()).memory[0].total
    )
    both = Settings(rollout=RolloutSettings(samplers=("torch", "torch"), sequences=8))
    with pytest.raises(BaseModelError, match="are free on this machine"):
        on_processor(BASE, both, one + (1 << 20), ())


def test_the_first_is_the_one_that_is_meant_where_one_is() -> None:
    assert sampler_kinds(BOTH, BASE) == ("llama.cpp", "torch")
    assert with_sampler(BOTH, BASE).rollout.sampler == "llama.cpp"
    torch = of_kind(Settings(rollout=RolloutSettings(weights="q8_0", gguf="own.gguf")), "torch").rollout
    assert (torch.weights, torch.gguf) == ("auto", ""), "what is said of llama.cpp's file is nothing to torch"


@pytest.mark.parametrize(
    ("numbers", "words"), [((0,), "gpu 0"), ((0, 1, 2), "gpus 0-2"), ((0, 2), "gpus 0, 2"), ((3, 5, 6), "gpus 3, 5, 6")]
)
def test_devices_are_named_for_people(numbers: tuple[int, ...], words: str) -> None:
    assert numbered("gpu", numbers) == words


@pytest.mark.parametrize(
    ("gigabytes", "asked", "trainers", "conversations"), [(8, 0, 4, 384), (4, 0, 1, 384), (4, 4, 4, 32), (2, 0, 1, 384)]
)
def test_trainers_nobody_asked_for_cost_no_conversation(
    gigabytes: int, asked: int, trainers: int, conversations: int
) -> None:
    settings = Settings(training=TrainingSettings(trainers=asked))
    plan = on_processor(BASE, settings, gigabytes << 30, range(16))
    assert (len(plan.placement.trainers), plan.memory[0].sequences) == (trainers, conversations)
