"""base check: what is refused, what is measured first, what is left behind, when another precision is worth a word."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from marlaas.app.cli.base import Kept, advice, on_this_processor
from marlaas.engine.devices.machine import Cpu, Inventory, Machine, Rates, Software
from marlaas.engine.devices.survey import Survey
from marlaas.engine.devices.usable import UsableResources
from marlaas.engine.home.paths import TINY_BASE, Home
from marlaas.engine.home.settings import RolloutSettings, Settings
from marlaas.engine.machine.placement.choices import Copy, CopySpeed
from marlaas.engine.machine.routing.router import Agreement
from marlaas.engine.models.find import load_base
from marlaas.engine.models.gguf import ensure, path_of, write_base
from marlaas.engine.models.memory import MemoryPlan
from marlaas.engine.train.trial import Trial, Tried, cleared, write_copies

from ...commanding import Commander

TRIAL = Trial(10, sampling=1.0, training=0.5, gap_mean=0.0, gap_max=0.0)
F32, F16, Q8_0, BF16 = (
    Copy("llama.cpp", "f32"),
    Copy("llama.cpp", "f16"),
    Copy("llama.cpp", "q8_0"),
    Copy("torch", "bf16"),
)
TRIED = Tried(F32, MemoryPlan(8, 512, "f32", 1, 32, 0, ()), "", 0, 0, Agreement(0.0, 0.0, 1.0, 0.0), TRIAL)


def tried(**seconds: float) -> list[Tried]:
    trials = {name: replace(TRIAL, sampling=one) for name, one in seconds.items()}
    return [replace(TRIED, copy=Copy("llama.cpp", name), trial=trial) for name, trial in trials.items()]


def test_only_a_clear_gain_is_spoken_of() -> None:
    assert advice(F32, tried(f32=10.0, q8_0=9.5)) == ""
    assert advice(Q8_0, tried(f32=10.0, q8_0=4.0)) == ""
    assert advice(Copy("llama.cpp", "q4_k_m"), tried(f32=10.0, q8_0=4.0)) == "", "nobody measured it"
    said = advice(F32, tried(f32=10.0, q8_0=4.0))
    assert '`weights = "q8_0"`' in said and "2.5 times as fast as f32" in said


@pytest.mark.parametrize(
    ("gain", "kept"),
    [
        (0.5, Kept("f32", (F16, Q8_0, Copy("torch", "f32")))),
        (5.0, Kept("bf16", (BF16, F16, Q8_0, Copy("torch", "f32")))),
    ],
)
def test_what_an_engine_would_keep_is_measured_first(
    gain: float, kept: Kept, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, settings = load_base("tiny"), Settings()
    cpu = Cpu((0, 1), 2, 64 << 30, rates=Rates(100e9, 10e9, bfloat16=gain * 100e9))
    seen = Survey(Inventory(Machine(cpu)), UsableResources(Machine(cpu)), Software(), "me")
    small = on_this_processor(home, base, settings, seen, 32 << 30)
    assert small == Kept("f32", (Copy("torch", "f32"),)), "a small base is kept in float32"
    monkeypatch.setattr("marlaas.engine.machine.placement.choices.SMALL", 0)
    monkeypatch.setattr("marlaas.engine.models.memory.SMALL", 0)
    assert on_this_processor(home, base, settings, seen, 32 << 30) == kept
    assert on_this_processor(home, base, settings, seen, 1 << 20).trainer == kept.trainer, "without room, too"
    home.create()
    write_copies(home.speeds, base, 0, [CopySpeed(F16, 9.0, 0.001), CopySpeed(Q8_0, 5.0, 0.05)])
    assert on_this_processor(home, base, settings, seen, 32 << 30).copies[0] == Q8_0, "measured before"
    named = Settings(rollout=RolloutSettings(weights="q4_k_m"))
    assert on_this_processor(home, base, named, seen, 32 << 30).copies == (Copy("llama.cpp", "q4_k_m"),)


def test_files_of_an_interrupted_check_are_removed(home: Home) -> None:
    base, copies = load_base("tiny"), (F32, F16, Q8_0)
    plans = {copy: replace(TRIED.memory, weights=copy.weights) for copy in copies}
    of_f32, of_f16, of_q8_0 = (path_of(base, home.base, copy.weights) for copy in copies)
    ensure(of_f32, 0, lambda path: write_base(base, path))
    with pytest.raises(KeyboardInterrupt), cleared(base, home, plans) as kept:
        for path in (of_f16, of_q8_0):
            ensure(path, 0, lambda path: write_base(base, path, "f16"))
        (home.base / f".{of_q8_0.name}.{2**30}.f32").write_text("of a process that has ended")
        kept.add("f16")
        raise KeyboardInterrupt
    left = {of_f32, of_f16}
    assert set(home.base.iterdir()) == left


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
    monkeypatch.setattr("marlaas.app.cli.base.available_memory", lambda limit: 1 << 20)
    for more in ((), ("--weights", "f16,q8_0")):
        said = marlaas("base", "check", "tiny", *more)
        assert said.code == 2 and said.err.count("of memory") == 1 and "Measuring" not in said.err
