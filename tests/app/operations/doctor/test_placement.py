"""The report says where work would go, in the words of the plan itself."""

from dataclasses import replace
from pathlib import Path

from marlaas.app.operations.doctor import cards_used, decided
from marlaas.engine.devices.machine import Inventory, Machine, Software
from marlaas.engine.devices.survey import Survey
from marlaas.engine.devices.usable import UsableResources
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import RolloutSettings, Settings, TrainingSettings
from marlaas.engine.models.find import load_base
from tests.engine.machine.placement.imaginary import ALL, NOTHING, machine


def seen(found: Machine, software: Software) -> Survey:
    return Survey(Inventory(found), UsableResources(found), software, "me")


def home(folder: Path, text: str) -> Home:
    made = Home(folder)
    made.config.write_text(text)
    return made


def test_every_reason_is_a_line(tmp_path: Path) -> None:
    text = '[rollout]\ndevices = ["gpu 0"]\n[training]\ndevices = ["gpu 1"]\n'
    found = list(decided(home(tmp_path, text), seen(machine("A100", "A100"), ALL)))
    assert {finding.name for finding in found} == {"placement"}
    assert {finding.verdict for finding in found} == {"ok"}
    assert found[0].value.startswith("vLLM 0.32.0 samples on gpu 0 (A100)")


def test_contradictions_are_what_is_missing(tmp_path: Path) -> None:
    (finding,) = decided(home(tmp_path, '[rollout]\nsampler = "vllm"\n'), seen(machine("A100"), NOTHING))
    assert finding.verdict == "missing"
    assert "vllm" in finding.value
    assert finding.advice


def test_the_cards_that_would_be_used() -> None:
    base, two = load_base("tiny"), seen(machine("A100", "A100"), ALL)
    named = Settings(rollout=RolloutSettings(devices=("gpu 0",)), training=TrainingSettings(devices=("gpu 1",)))
    assert cards_used(base, named, two) == "gpu 0 and gpu 1"
    assert cards_used(base, Settings(), two) == "", "so small a base stays on the processor"
    assert cards_used(base, named, seen(machine(), NOTHING)) == "", "what contradicts itself is said elsewhere"


def test_hostile_words_reach_no_screen(tmp_path: Path) -> None:
    hostile = machine("A100")
    card = replace(hostile.gpus[0], name="A\x1b[31m")
    text = '[rollout]\ndevices = ["gpu 0"]\n'
    found = list(decided(home(tmp_path, text), seen(replace(hostile, gpus=(card,)), ALL)))
    assert not any("\x1b" in finding.value for finding in found)
