"""base check: what is refused before anything is measured, and when another precision is worth a word."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from marlaas.app.cli.base.check import Kept, advice, chosen_precision, on_this_processor
from marlaas.engine.base.fit import MemoryPlan
from marlaas.engine.base.model import load_base
from marlaas.engine.devices import Cpu, Inventory, Machine, Rates, Software, Survey, UsableResources
from marlaas.engine.fleet.agreement import Agreement
from marlaas.engine.home.paths import TINY_BASE
from marlaas.engine.home.settings import RolloutSettings, Settings
from marlaas.engine.run.trial.base import Tried, precisions, with_weights
from marlaas.engine.run.trial.step import Trial

from ...commanding import Commander

TRIAL = Trial(8, 10, 2048, sampling=1.0, training=0.5, gap_mean=0.0, gap_max=0.0)
TRIED = Tried("f32", MemoryPlan(8, 512, "f32", 1, 32, 0, ()), "", 0, 0, Agreement(0.0, 0.0, 1.0, 0.0), TRIAL)


def tried(**seconds: float) -> list[Tried]:
    return [replace(TRIED, weights=name, trial=replace(TRIAL, sampling=one)) for name, one in seconds.items()]


def test_only_a_clear_gain_is_spoken_of() -> None:
    assert advice("f32", tried(f32=10.0, q8_0=9.5)) == ""
    assert advice("q8_0", tried(f32=10.0, q8_0=4.0)) == ""
    assert advice("q4_k_m", tried(f32=10.0, q8_0=4.0)) == "", "nobody measured what the settings lead to"
    said = advice("f32", tried(f32=10.0, q8_0=4.0))
    assert '`weights = "q8_0"`' in said and "2.5 times as fast as f32" in said


def test_settings_without_room_choose_nothing() -> None:
    base, settings = load_base("tiny"), Settings()
    assert chosen_precision(base, settings, 8 << 30) == "f32"
    assert chosen_precision(base, settings, 1 << 20) == "", "what has no room keeps nothing else from being measured"


@pytest.mark.parametrize(("gain", "kept"), [(0.5, Kept()), (5.0, Kept("bf16", "bf16"))])
def test_it_measures_what_an_engine_would_keep(gain: float, kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    base, settings = load_base("tiny"), Settings()
    cpu = Cpu((0, 1), 2, 64 << 30, rates=Rates(100e9, 10e9, bfloat16=gain * 100e9))
    seen = Survey(Inventory(Machine(cpu)), UsableResources(Machine(cpu)), Software(), "me")
    assert on_this_processor(base, settings, seen) == Kept(), "a small base is kept in float32"
    monkeypatch.setattr("marlaas.engine.fleet.placement.processor.SMALL", 0)
    assert on_this_processor(base, settings, seen) == kept
    assert chosen_precision(base, settings, 32 << 30, kept) == (kept.sampler or "f32")


def test_bfloat16_is_sampled_on_torch() -> None:
    llama, torch = (Settings(rollout=RolloutSettings(sampler=sampler)) for sampler in ("llama.cpp", "torch"))
    assert precisions(llama, ("q8_0", "bf16")) == ("q8_0", "bf16")
    assert precisions(torch, ("q8_0", "bf16")) == ("bf16",) and precisions(torch, ("q8_0",)) == ("f32",)
    assert [with_weights(llama, weights).rollout.sampler for weights in ("q8_0", "bf16")] == ["llama.cpp", "torch"]


def test_unknown_precisions_are_named(marlaas: Commander) -> None:
    said = marlaas("base", "check", "tiny", "--weights", "f32,q3")
    assert said.code == 2 and "'q3' is no precision; known are f32, f16, q8_0" in said.err and "bf16" in said.err


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json"),
        (lambda folder: (folder / "chat_template.jinja").write_text("{% if %}"), "line 1"),
        (
            lambda folder: (folder / "config.json").write_text(
                json.dumps(json.loads((folder / "config.json").read_text()) | {"vocab_size": 100})
            ),
            "vocab_size",
        ),
    ],
)
def test_a_damaged_folder_is_refused_unmeasured(
    marlaas: Commander, tmp_path: Path, spoil: object, sentence: str
) -> None:
    folder = Path(shutil.copytree(TINY_BASE, tmp_path / "base"))
    spoil(folder)  # type: ignore[operator]
    said = marlaas("base", "check", str(folder))
    assert said.code == 2 and sentence in said.err and "Measuring" not in said.err


def test_a_base_that_cannot_fit_is_refused_once(marlaas: Commander, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marlaas.engine.devices.memory.available_memory", lambda limit: 1 << 20)
    for more in ((), ("--weights", "f16,q8_0")):
        said = marlaas("base", "check", "tiny", *more)
        assert said.code == 2 and said.err.count("of memory") == 1 and "Measuring" not in said.err
