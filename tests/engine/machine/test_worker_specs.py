"""What workers are started with follows from the settings and from what fits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from marlaas.engine.errors import BaseModelError
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import RolloutSettings, Settings, TrainingSettings
from marlaas.engine.machine.plan import (
    COLOCATED,
    WorkerSpec,
    plan_of,
    sampler_spec,
    shared_spec,
    stored_as,
    trainer_spec,
    with_sampler,
)
from marlaas.engine.models.find import load_base
from marlaas.engine.models.weights import parameters

BASE = load_base("tiny")
ENOUGH = 8 << 30


@pytest.mark.parametrize(("sampler", "sequences"), [("auto", 384), ("torch", 384), ("llama.cpp", 128)])
def test_the_shipped_base_gets_what_is_published(sampler: str, sequences: int) -> None:
    memory = plan_of(BASE, Settings(rollout=RolloutSettings(sampler=sampler)), ENOUGH)
    assert (memory.sequences, memory.context, memory.weights) == (sequences, 512, "f32")


def test_what_does_not_fit_is_refused_before_any_start() -> None:
    with pytest.raises(BaseModelError, match="are free on this machine"):
        plan_of(BASE, Settings(), 100 << 20)


def test_a_sampler_alone_needs_no_room_for_a_trainer() -> None:
    settings = Settings(rollout=RolloutSettings(sequences=4))
    both, alone = (plan_of(BASE, settings, ENOUGH, trains=trains) for trains in (True, False))
    assert dict(alone.parts) == {what: size for what, size in both.parts if "train" not in what}
    assert alone.total < both.total / 2


def test_both_workers_get_what_was_planned(tmp_path: Path) -> None:
    settings = Settings(rollout=RolloutSettings(sequences=16, context=256, weights="q8_0"))
    memory = plan_of(BASE, settings, ENOUGH)
    sampler = sampler_spec(BASE, Home(tmp_path), settings, memory)
    assert (sampler.kwargs["sequences"], sampler.kwargs["context"]) == (16, 256)
    assert (sampler.kwargs["weights"], sampler.kwargs["gguf"]) == ("q8_0", "")
    trainer = trainer_spec(BASE, Home(tmp_path), settings, memory)
    assert trainer.kwargs["room"] == memory.room and trainer.kwargs["fingerprint"] == BASE.fingerprint
    assert (trainer.kwargs["slots"], trainer.kwargs["largest_rank"]) == (0, 256)
    assert trainer.kwargs["held"] == memory.held and trainer.kwargs["scratch"] == str(tmp_path / "scratch")
    assert not set(sampler.cores) & set(trainer.cores), "each has cores of its own"


def test_the_settings_say_how_many_policies_are_held(tmp_path: Path) -> None:
    settings = Settings(training=TrainingSettings(slots=3, largest_rank=8))
    memory = plan_of(BASE, settings, ENOUGH)
    kwargs = trainer_spec(BASE, Home(tmp_path), settings, memory).kwargs
    assert (memory.slots, kwargs["slots"], kwargs["held"], kwargs["largest_rank"]) == (3, 3, 0, 8)


def test_torch_samples_without_a_file(tmp_path: Path) -> None:
    settings = Settings(rollout=RolloutSettings(sampler="torch"))
    kwargs = sampler_spec(BASE, Home(tmp_path), settings, plan_of(BASE, settings, ENOUGH)).kwargs
    assert not {"weights", "gguf", "exact"} & set(kwargs)
    assert kwargs["cache"] == str(Home(tmp_path).base)  # for compiled passes


@pytest.mark.parametrize(
    ("rollout", "sampler"),
    [
        (RolloutSettings(sampler="auto"), "torch"),
        (RolloutSettings(sampler="auto", weights="q8_0"), "llama.cpp"),
        (RolloutSettings(sampler="auto", gguf="own.gguf"), "llama.cpp"),
        (RolloutSettings(sampler="llama.cpp"), "llama.cpp"),
        (RolloutSettings(sampler="torch"), "torch"),
    ],
)
def test_auto_takes_torch_unless_something_asks_for_llama(rollout: RolloutSettings, sampler: str) -> None:
    assert with_sampler(Settings(rollout=rollout), BASE).rollout.sampler == sampler


def test_auto_takes_llama_for_what_is_large_or_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(rollout=RolloutSettings(sampler="auto"))
    other = replace(BASE, config=replace(BASE.config, architecture="gemma"))
    assert with_sampler(settings, other).rollout.sampler == "llama.cpp"
    monkeypatch.setattr("marlaas.engine.machine.placement.choices.SMALL", 4 * parameters(BASE) - 1)
    assert with_sampler(settings, BASE).rollout.sampler == "llama.cpp"


@pytest.mark.parametrize(("bits", "weights"), [(32, "f32"), (16, "f16"), (8.6, "q8_0"), (4.6, "q4_k_m"), (2, "q4_k_m")])
def test_a_brought_files_size_tells_its_precision(tmp_path: Path, bits: float, weights: str) -> None:
    file = tmp_path / "own.gguf"
    with file.open("wb") as opened:
        opened.truncate(int(parameters(BASE) * bits / 8))
    settings = Settings(rollout=RolloutSettings(gguf=str(file)))
    assert stored_as(BASE, settings, plan_of(BASE, settings, ENOUGH)) == weights


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BaseModelError, match=r"gone\.gguf: the GGUF file cannot be read"):
        plan_of(BASE, Settings(rollout=RolloutSettings(gguf=str(tmp_path / "gone.gguf"))), ENOUGH)


def test_one_worker_does_what_both_specs_say() -> None:
    sampler = WorkerSpec("rollout", "a:Sampler", {"base": "tiny", "threads": 1}, (0,))
    trainer = WorkerSpec("training", "a:Trainer", {"base": "tiny", "threads": 2}, (1, 2))
    spec = shared_spec(sampler, trainer)
    assert (spec.name, spec.factory, spec.cores) == ("rollout", COLOCATED, (0, 1, 2))
    assert spec.kwargs == {"sampler": sampler.kwargs, "trainer": trainer.kwargs}
